"""Registers tasks, models and criteria with fairseq, and changes what breaks it on this stack, or its users' work.

Importing it does that, once; it prints nothing and touches no device. ``import amlp_fairseq`` imports it where fairseq
has been imported, as by ``--user-dir``.
"""

import warnings

# Python 3.12 names bad escapes of fairseq when it compiles them: always, where it may not keep what it compiles.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=r".*[/\\]fairseq[/\\]")
from amlp_fairseq.compat.fairseq_import import quick_imports  # noqa: E402 - imports fairseq, and looks at versions first

with quick_imports():
    from fairseq import checkpoint_utils, file_utils, options, sequence_generator, trainer
    from fairseq.data import ConcatDataset, indexed_dataset
    from fairseq.data.audio import audio_utils
    from fairseq.data.fasta_dataset import FastaDataset
    from fairseq.distributed import utils as distributed_utils
    from fairseq.file_io import PathManager
    from fairseq.models.text_to_speech import vocoder
    from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
    from fairseq.optim.fp16_optimizer import FP16Optimizer
    from fairseq.trainer import Trainer

    from amlp_fairseq.common.host_memory import use_huge_pages
    from amlp_fairseq.compat import (
        archives,
        bf16,
        binarised_files,
        changes,
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
    from amlp_fairseq.compat.changes import Change
    from amlp_fairseq.model_folder import as_checkpoint

#: What is changed in fairseq, by module. Each name is changed once: of several functions around it the last one is the
#: outermost. Their docstrings say why; what takes the place of a value is explained in its module.
CHANGES = [
    # Command lines
    Change(options, "get_parser", (command_line.with_nearest_names,)),
    Change(options, "parse_args_and_arch", (bf16.only_asked_tpu, command_line.with_nearest_names)),
    Change(distributed_utils, "call_main", (processes.check_processes, diverged.name_of_process)),
    # Training
    Change(Trainer, "__init__", (bf16.without_flat_gradients, training_memory.keep_memory, command_line.check_trainer)),
    Change(Trainer, "train_step", (training_memory.return_pieces, diverged.mark)),
    Change(
        Trainer,
        "load_checkpoint",
        (finetuning.begin_with_what_fits, guarded_tasks.compare_dictionaries, resumed_state.restore_patience),
    ),
    Change(Trainer, "state_dict", (resumed_state.with_all_state,)),
    Change(trainer, "NanDetector", value=diverged.Detector),
    Change(FP16Optimizer, "load_state_dict", (resumed_state.restore_optimizer,)),
    Change(DynamicLossScaler, "check_overflow", (bf16.overflow_without_gpu,)),
    # Checkpoints
    Change(
        checkpoint_utils,
        "load_checkpoint_to_cpu",
        (safe_checkpoints.name_what_is_refused, as_checkpoint.load_folder, checkpoint_options.check_options),
    ),
    Change(checkpoint_utils, "load_checkpoint", (training_folder.check_folder, diverged.remove_mark)),
    Change(checkpoint_utils, "save_checkpoint", (interval_checkpoints.save_within_epoch,)),
    Change(checkpoint_utils, "load_model_ensemble_and_task", (ensembles.name_files,)),
    Change(PathManager, "copy", (whole_copies.copy_whole,)),
    Change(PathManager, "isfile", (as_checkpoint.is_checkpoint,)),
    Change(file_utils, "tarfile", value=archives.TARFILE),
    # Data
    Change(indexed_dataset, "make_dataset", (binarised_files.make_checked_dataset,)),
    Change(ConcatDataset, "__init__", (training_sets.count_once,)),
    Change(FastaDataset, "_build_index", (file_names.quote,)),
    # Options that are evaluated
    *(Change(module, "eval", value=literal_options.literal) for module in literal_options.modules()),
    # Search and speech
    Change(sequence_generator, "NGramRepeatBlock", value=repeated_ngrams.RepeatedNgrams),
    Change(audio_utils, "get_mel_filters", value=mel_filters.mel_filters),
    Change(vocoder, "get_mel_filters", value=mel_filters.mel_filters),  # imported by name
]
numpy_names.restore()
safe_checkpoints.allow_types()
use_huge_pages()  # before a model has tensors
changes.install(CHANGES)
command_line.name_mistakes()

# --user-dir scans models/ and tasks/ only when the package is not imported yet: register everything here.
with quick_imports():
    from amlp_fairseq import criterions, models, tasks  # noqa: F401
