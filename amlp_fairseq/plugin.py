"""Registers tasks, models and criteria with fairseq, and changes what breaks it on this stack, or its users' work.

Importing it does that, once; it prints nothing and touches no device. ``import amlp_fairseq`` imports it where fairseq
has been imported, as by ``--user-dir``.
"""

import warnings

# Python 3.12 names bad escapes of fairseq when it compiles them: always, where it may not keep what it compiles.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=r".*[/\\]fairseq[/\\]")
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")  # fairseq uses it; torch 2.14 warns
    from amlp_fairseq.compat import (
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
    from amlp_fairseq.model_folder import as_checkpoint

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
        as_checkpoint,
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

    # --user-dir scans models/ and tasks/ only when the package is not imported yet: register everything here.
    from amlp_fairseq import criterions, models, tasks  # noqa: F401
