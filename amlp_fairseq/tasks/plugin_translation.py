"""The base of the plugin's translation tasks."""

import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Optional

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks.translation import TranslationConfig

from amlp_fairseq.compat.commands import keep_lines_whole
from amlp_fairseq.compat.internals import TASK_REGISTRY, GenerationConfig
from amlp_fairseq.compat.tasks import GuardedTranslationTask
from amlp_fairseq.decoding.packed_linear import DECODE_DTYPES
from amlp_fairseq.engine.shortlist import Shortlist
from amlp_fairseq.model_folder.config import DISABLED


@dataclass
class DecodingConfig(FairseqDataclass):
    """Options of the plugin's generators."""

    decode_dtype: Optional[ChoiceEnum(DECODE_DTYPES)] = field(  # type: ignore[valid-type]
        default=None,
        metadata={"help": "type of the weights when decoding; int8: CPU only, float16: CUDA only (default: their own)"},
    )
    cuda_graphs: bool = field(
        default=False,
        metadata={"help": "replay decoder calls as CUDA graphs"},
    )
    rescore_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "checkpoint or model folder of an autoregressive model that reranks the hypotheses of the beam, or "
            "candidates, in one call"
        },
    )
    shortlist: Optional[str] = field(
        default=None,
        metadata={
            "help": "file of amlp-fairseq shortlist: a translation has likely translations of its source's words and "
            "frequent words alone, over which scores are; 'none': all words, for a model folder with such a file"
        },
    )


class PluginTranslationTask(GuardedTranslationTask):
    """A translation task that refuses options which would have no effect."""

    #: Generation options that the task's generator honours; any other that is not at its default is an error.
    HONOURED_GENERATION_OPTIONS: frozenset[str] = frozenset()
    #: On a CPU the engine decodes, where it has the model and the options.
    use_engine = True
    #: Alternatives to refused options, by their names.
    INSTEAD: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def setup_task(cls, cfg: TranslationConfig, **kwargs: object) -> "PluginTranslationTask":
        """Create the task.

        Raises:
            FileNotFoundError: for a missing data folder.
            ValueError: for options that validation would ignore.
        """
        for path in utils.split_paths(cfg.data or ""):
            if not os.path.isdir(path):
                raise FileNotFoundError(f"the data folder {path!r} does not exist (made by fairseq-preprocess)")
        keep_lines_whole()
        for name, disabled in DISABLED.items():
            if getattr(cfg, name, None) == disabled:
                setattr(cfg, name, None)
        task = super().setup_task(cfg, **kwargs)
        task.check_eval_bleu()
        return task

    def shortlist(self) -> Shortlist | None:
        """The lexical shortlist of ``--shortlist``.

        Raises:
            ValueError: for a file that is none.
            OSError: for one that cannot be read.
        """
        if self.cfg.shortlist is None:
            return None
        return Shortlist.open(Path(self.cfg.shortlist), self.source_dictionary.symbols, self.target_dictionary.symbols)

    def refuse_unsupported_generation_options(
        self,
        args: GenerationConfig | Namespace,
        extra_gen_cls_kwargs: Optional[Mapping[str, Any]],
        prefix_allowed_tokens_fn: Optional[Callable[..., Any]],
    ) -> None:
        """Check the arguments of ``build_generator``.

        Raises:
            ValueError: for generation options that would have no effect, naming them; for a language model and
                ``prefix_allowed_tokens_fn``.
        """
        self.refuse_unsupported(args)
        if prefix_allowed_tokens_fn is not None or (extra_gen_cls_kwargs or {}).get("lm_model") is not None:
            raise ValueError(f"{self.option()} has neither prefix_allowed_tokens_fn nor a language model")

    @classmethod
    def refuse_unsupported(cls, args: GenerationConfig | Namespace) -> None:
        """Raise ValueError for generation options that would have no effect, naming them."""
        refused = []
        for name, option in GenerationConfig.__dataclass_fields__.items():
            value = getattr(args, name, option.default)
            if name not in cls.HONOURED_GENERATION_OPTIONS and value != option.default:
                refused.append(f"--{name.replace('_', '-')} {value}{cls.INSTEAD.get(name, '')}")
        if refused:
            raise ValueError(f"{cls.option()} does not have {', '.join(refused)}")

    @classmethod
    def option(cls) -> str:
        """The task's option of ``fairseq-train``, for messages."""
        return next(f"--task {name}" for name, task in TASK_REGISTRY.items() if task is cls)
