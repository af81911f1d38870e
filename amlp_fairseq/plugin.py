"""Registers tasks, models and criteria with fairseq, and changes what breaks it on this stack, or its users' work.

Importing it does that, once; it prints nothing and touches no device. ``import amlp_fairseq`` imports it where fairseq
has been imported, as by ``--user-dir``.
"""

import warnings
from functools import partial

# Python 3.12 warns of invalid escapes in fairseq's source, on every run if it cannot write .pyc files.
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
        utils,
    )
    from amlp_fairseq.compat import tasks as compat_tasks
    from amlp_fairseq.compat.changes import Change
    from amlp_fairseq.model_folder import as_checkpoint

#: All that is changed in fairseq, in the order of installation: the name, what stock does without the change, and what
#: takes its place. ``compat`` has a module for each of fairseq's.
CHANGES = [
    *(
        Change(f"numpy:{name}", "lacks what fairseq uses", value=value)
        for name, value in library_names.missing().items()
    ),
    Change("numpy:percentile", "lacks an argument that fairseq uses", library_names.percentile),
    Change("fairseq.options:get_parser", "answers a mistake with all options", options.get_parser),
    Change("fairseq.options:parse_args_and_arch", "the same; asks for a TPU with --bf16", options.parse_args_and_arch),
    Change("fairseq.distributed.utils:call_main", "trains on fewer processes than started", distributed.call_main),
    Change("fairseq.trainer:Trainer.__init__", "asks for a GPU with --fp16; fails after an epoch", trainer.init),
    Change("fairseq.trainer:Trainer.train_step", "ends with a traceback where it diverges", trainer.train_step),
    Change("fairseq.trainer:Trainer.state_dict", "keeps too little to go on unchanged", trainer.state_dict),
    Change("fairseq.trainer:Trainer.load_checkpoint", "takes any dictionary", trainer.load_checkpoint),
    Change("fairseq.trainer:NanDetector", "fails on what fairseq's encoders return", value=trainer.Detector),
    Change(
        "fairseq.optim.fp16_optimizer:FP16Optimizer.load_state_dict",
        "goes on from parameters in 16 bits",
        optim.load_state_dict,
    ),
    Change(
        "fairseq.optim.dynamic_loss_scaler:DynamicLossScaler.check_overflow",
        "needs a GPU",
        optim.check_overflow,
    ),
    Change(
        "fairseq.checkpoint_utils:load_checkpoint_to_cpu",
        "does not name what is refused; reads no folders of models; drops options that the model does not have",
        partial(checkpoint_utils.load_checkpoint_to_cpu, read_folder=as_checkpoint.read_folder),
    ),
    Change(
        "fairseq.checkpoint_utils:_upgrade_state_dict",
        "fails on a checkpoint without the optimizer's history, and on one of an unknown architecture",
        checkpoint_utils.upgrade_state_dict,
    ),
    Change(
        "fairseq.checkpoint_utils:load_checkpoint",
        "lets two trainings write to one folder; begins anew without the checkpoint; makes one update too many",
        checkpoint_utils.load_checkpoint,
    ),
    Change(
        "fairseq.checkpoint_utils:save_checkpoint",
        "keeps no checkpoint of an interval that ends with an epoch",
        checkpoint_utils.save_checkpoint,
    ),
    Change("fairseq.file_io:PathManager.copy", "leaves half a checkpoint when it is killed", file_io.copy),
    Change("fairseq.file_io:PathManager.isfile", "passes over the folder of a model", as_checkpoint.is_checkpoint),
    Change("fairseq.data.indexed_dataset:make_dataset", "reads damaged files; runs names", data.make_dataset),
    Change("fairseq.data.concat_dataset:ConcatDataset.__init__", "takes no second training set", data.concat),
    Change("fairseq.data.iterators:FrozenBatchSampler.__init__", "ends 5 s late for each worker", data.frozen_batches),
    *(
        Change(f"{module}:eval", "runs options, also those of a checkpoint", value=literal_options.literal)
        for module in literal_options.modules()
    ),
    Change(
        "fairseq.tasks.translation_from_pretrained_bart:TranslationFromPretrainedBARTTask.__init__",
        "fails where it decodes",
        compat_tasks.init_from_pretrained_bart,
    ),
    Change(
        "fairseq.sequence_generator:NGramRepeatBlock",
        "has no effect without a CUDA extension",
        value=sequence_generator.RepeatedNgrams,
    ),
    Change("fairseq.utils:load_align_dict", "opens a file that is not meant for --replace-unk", utils.load_align_dict),
    Change(
        "fairseq.utils:post_process_prediction",
        "fails with --replace-unk, and counts words that were put together",
        utils.post_process_prediction,
    ),
    Change(
        "fairseq.tasks.fairseq_task:FairseqTask.build_generator",
        "makes no alignments for --replace-unk",
        compat_tasks.build_generator,
    ),
    Change("fairseq.data.audio.audio_utils:get_mel_filters", "fails with librosa", value=audio.get_mel_filters),
    Change("fairseq.models.text_to_speech.vocoder:get_mel_filters", "the same", value=audio.get_mel_filters),
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
