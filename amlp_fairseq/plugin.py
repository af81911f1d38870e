"""Registers tasks, models and criteria with fairseq, and changes what breaks it on this stack, or its users' work.

Importing it does that, once; it prints nothing and touches no device. ``import amlp_fairseq`` imports it where fairseq
has been imported, as by ``--user-dir``.
"""

import warnings
from functools import partial

# Python 3.12 warns of invalid escapes in fairseq's source: always, where it may not keep what it compiles.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=r".*[/\\]fairseq[/\\]")
from amlp_fairseq.compat.fairseq_import import quick_imports  # noqa: E402 - imports fairseq, and looks at versions first

with quick_imports():
    from amlp_fairseq.common.host_memory import use_huge_pages
    from amlp_fairseq.compat import (
        audio,
        changes,
        checkpoint_utils,
        commands,
        data,
        distributed,
        file_io,
        library_names,
        literal_options,
        optim,
        options,
        sequence_generator,
        trainer,
    )
    from amlp_fairseq.compat.changes import Change
    from amlp_fairseq.model_folder import as_checkpoint

#: All that is changed in fairseq, in the order of installation; ``compat`` has a module for each of fairseq's.
CHANGES = [
    *(Change(f"numpy:{name}", "fairseq uses it", value=value) for name, value in library_names.missing().items()),
    Change("numpy:percentile", "its argument has another name now", library_names.percentile),
    Change("fairseq.options:get_parser", "mistakes are answered with a list of all options", options.get_parser),
    Change("fairseq.options:parse_args_and_arch", "the same; --bf16 asks for a TPU", options.parse_args_and_arch),
    Change("fairseq.distributed.utils:call_main", "fewer processes train than were started", distributed.call_main),
    Change("fairseq.trainer:Trainer.__init__", "--fp16 needs a GPU; options that fail after an epoch", trainer.init),
    Change("fairseq.trainer:Trainer.train_step", "a training that diverges ends with a traceback", trainer.train_step),
    Change("fairseq.trainer:Trainer.state_dict", "a training that is resumed is another one", trainer.state_dict),
    Change("fairseq.trainer:Trainer.load_checkpoint", "the same; other dictionaries", trainer.load_checkpoint),
    Change("fairseq.trainer:NanDetector", "its hooks fail with fairseq's own encoders", value=trainer.Detector),
    Change("fairseq.optim.fp16_optimizer:FP16Optimizer.load_state_dict", "resumed from 16 bits", optim.load_state_dict),
    Change(
        "fairseq.optim.dynamic_loss_scaler:DynamicLossScaler.check_overflow",
        "--fp16 without a GPU ends with a traceback",
        optim.check_overflow,
    ),
    Change(
        "fairseq.checkpoint_utils:load_checkpoint_to_cpu",
        "torch refuses checkpoints without a name; folders of models; options that the model ignores",
        partial(checkpoint_utils.load_checkpoint_to_cpu, read_folder=as_checkpoint.read_folder),
    ),
    Change(
        "fairseq.checkpoint_utils:load_checkpoint",
        "two trainings write to one folder; a missing checkpoint means to begin anew; one update too many",
        checkpoint_utils.load_checkpoint,
    ),
    Change(
        "fairseq.checkpoint_utils:save_checkpoint",
        "no checkpoint of an interval that ends with an epoch",
        checkpoint_utils.save_checkpoint,
    ),
    Change("fairseq.file_io:PathManager.copy", "half a checkpoint_last.pt", file_io.copy),
    Change("fairseq.file_io:PathManager.isfile", "a model's folder is passed over", as_checkpoint.is_checkpoint),
    Change("fairseq.data.indexed_dataset:make_dataset", "damaged files are read; names are run", data.make_dataset),
    Change("fairseq.data.concat_dataset:ConcatDataset.__init__", "several training sets are refused", data.concat),
    *(
        Change(f"{module}:eval", "options, also those of a checkpoint, are run", value=literal_options.literal)
        for module in literal_options.modules()
    ),
    Change(
        "fairseq.sequence_generator:NGramRepeatBlock",
        "--no-repeat-ngram-size has no effect",
        value=sequence_generator.RepeatedNgrams,
    ),
    Change(
        "fairseq.data.audio.audio_utils:get_mel_filters",
        "librosa refuses its arguments",
        value=audio.get_mel_filters,
    ),
    Change("fairseq.models.text_to_speech.vocoder:get_mel_filters", "imported by name", value=audio.get_mel_filters),
]
checkpoint_utils.allow_types()
use_huge_pages()  # before a model has tensors
with quick_imports():
    changes.install(CHANGES)
commands.check_options()
commands.name_mistakes()

# --user-dir scans models/ and tasks/ only when the package is not imported yet: register everything here.
with quick_imports():
    from amlp_fairseq import criterions, models, tasks  # noqa: F401
