"""Everything that reaches into fairseq's insides: the folder to open when fairseq changes."""

from amlp_fairseq.common import versions
from amlp_fairseq.compat import fairseq_present

versions.check()
fairseq_present.require()

from amlp_fairseq.compat import (  # noqa: E402
    archives,
    bf16,
    binarised_files,
    checkpoint_options,
    command_line,
    diverged,
    ensembles,
    file_names,
    finetuning,
    guarded_tasks,
    interval_checkpoints,
    literal_options,
    mel_filters,
    model_folders,
    numpy_names,
    processes,
    repeated_ngrams,
    resumed_state,
    safe_checkpoints,
    training_folder,
    training_memory,
    training_sets,
    whole_copies,
)


def install() -> None:
    """Mend what breaks fairseq on this stack, or breaks its users' work; each file says what it changes."""
    for fix in (
        numpy_names,
        bf16,
        processes,
        whole_copies,
        literal_options,
        file_names,
        archives,
        binarised_files,
        safe_checkpoints,
        model_folders,
        checkpoint_options,
        finetuning,
        guarded_tasks,  # also looks at the dictionaries of what finetuning loads
        resumed_state,
        interval_checkpoints,
        training_folder,
        training_memory,
        training_sets,
        diverged,
        ensembles,
        repeated_ngrams,
        mel_filters,
        command_line,
    ):
        fix.install()
