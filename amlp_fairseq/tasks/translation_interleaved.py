"""Translation with several words per decoding step, in several directions. Notation: docs/glossary.md."""

import logging
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.nat import FairseqNATModel
from fairseq.models.transformer import TransformerModel, TransformerModelBase
from fairseq.tasks.translation import TranslationConfig

from amlp_fairseq.compat.internals import ARCH_MODEL_REGISTRY, GenerationConfig, NATLoss
from amlp_fairseq.compat.registration import register_task
from amlp_fairseq.compat.tasks import GuardedTranslationTask
from amlp_fairseq.data.interleaved_pair_dataset import InterleavedPairDataset
from amlp_fairseq.models.interleaved_decoder import IBDecoderModel
from amlp_fairseq.models.plugin_transformer import as_plugin_transformer
from amlp_fairseq.ops.generation_order import GenerationOrder
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import (
    FINISHED,
    GENERATION_ARGUMENTS,
    LENGTH_PENALTIES,
    WORDS_AFTER_END,
    SearchOptions,
)
from amlp_fairseq.search.speculative_decoding import SpeculativeDecoding
from amlp_fairseq.tasks.auxiliary_models import load_reranking_model
from amlp_fairseq.tasks.drafting import DRAFTS, build_drafter, draft_options
from amlp_fairseq.tasks.plugin_translation import DecodingConfig, PluginTranslationTask


@dataclass
class TranslationInterleavedConfig(TranslationConfig, DecodingConfig):
    """Options of ``translation_interleaved``: the order of generation, and what the paper leaves open."""

    num_directions: Optional[int] = field(
        default=None,
        metadata={"help": "h, directions of generation: 1 or an even number (default: the checkpoint's, else 2)"},
    )
    words_per_direction: Optional[int] = field(
        default=None,
        metadata={
            "help": "c, words per direction and decoding step; 0: directions take turns, one word a step "
            "(default: the checkpoint's, else 1)"
        },
    )
    middle_to_side: Optional[bool] = field(
        default=None,
        metadata={
            "help": "generate from the middle to the ends (default: the checkpoint's, else from the ends)",
        },
    )
    length_penalty: ChoiceEnum(LENGTH_PENALTIES) = field(  # type: ignore[valid-type]
        default="fairseq",
        metadata={
            "help": "scores are divided by length^lenpen, or by ((5+length)/6)^lenpen as in the authors' code ('gnmt')"
        },
    )
    words_after_end: ChoiceEnum(WORDS_AFTER_END) = field(  # type: ignore[valid-type]
        default="ignore",
        metadata={"help": "'count': scores count the words after the end symbol in its step"},
    )
    finished: ChoiceEnum(FINISHED) = field(  # type: ignore[valid-type]
        default="best",
        metadata={
            "help": "hypotheses to keep when they end: those among the best of their step, as in fairseq, or all, as "
            "in Algorithm 1 of the paper"
        },
    )
    deduplicate_ngrams: int = field(
        default=0, metadata={"help": "drop immediate repetitions of up to this many words from the output"}
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata={"help": "makes words that have been written less likely, if it is above 1: divides their logits"},
    )
    draft_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "checkpoint or model folder that drafts: an autoregressive --path with --beam 1 writes the same "
            "words in fewer decoder calls"
        },
    )
    draft: Optional[ChoiceEnum(DRAFTS)] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "'source': draft with the words of the source; 'none': no draft, for a model folder with one"
        },
    )
    draft_file: Optional[str] = field(
        default=None, metadata={"help": "draft with the translations in a file, segmented as the data are"}
    )
    draft_words: int = field(default=8, metadata={"help": "words of a draft that one decoder call checks"})


#: Generation options with which fairseq's own search decodes, for models that write from left to right.
FAIRSEQS_OPTIONS = frozenset(
    "sampling sampling_topk sampling_topp diverse_beam_groups diverse_beam_strength diversity_rate match_source_len "
    "constraints lm_path lm_weight score_reference".split()
)


#: Error text for options of models that write from left to right.
NOT_LEFT_TO_RIGHT = "only models that write word by word, from left to right, have it"

#: Searches of fairseq, of which it has one at a time.
FAIRSEQS_SEARCHES = ("sampling", "diverse_beam_groups", "match_source_len", "diversity_rate", "constraints")

logger = logging.getLogger(__name__)


def check_fairseqs_options(args: GenerationConfig | Namespace, words: int) -> None:
    """Raise ValueError, naming it, for a value that fairseq's search asserts to be another, or does not check.

    Args:
        args: fairseq's generation arguments.
        words: of the target dictionary.
    """
    given = {
        name: getattr(args, name, GenerationConfig.__dataclass_fields__[name].default) for name in FAIRSEQS_OPTIONS
    }
    for name, fits, range_of_values in (
        ("sampling_topk", lambda value: value == -1 or 0 < value <= words, f"from 1 to {words} words, or -1 for all"),
        ("sampling_topp", lambda value: value == -1 or 0 < value <= 1, "above 0 and at most 1, or -1 for all"),
    ):
        flag = f"--{name.replace('_', '-')} {given[name]}"
        if not fits(given[name]):
            raise ValueError(f"{flag} must be {range_of_values}")
        if given[name] > 0 and not given["sampling"]:
            raise ValueError(f"{flag} needs --sampling")
    of_searches = {name: given[name] for name in FAIRSEQS_SEARCHES}
    chosen = [f"--{name.replace('_', '-')}" for name, value in of_searches.items() if value and value not in (-1, -1.0)]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} exclude each other: give one of them")
    groups = given["diverse_beam_groups"]
    if groups > 0 and args.beam % groups:
        raise ValueError(f"--diverse-beam-groups {groups} must divide --beam {args.beam}")


@register_task("translation_interleaved", dataclass=TranslationInterleavedConfig)
class TranslationInterleavedTask(PluginTranslationTask):
    """Translation with interleaved targets and the multi-word beam search.

    The order of generation is a property of the model: the checkpoint has it, decoding uses it, and options that
    contradict it raise ValueError. With ``--num-directions 1`` the task also decodes models that were trained with
    fairseq's translation task.
    """

    HONOURED_GENERATION_OPTIONS = (
        frozenset(GENERATION_ARGUMENTS.values())
        | FAIRSEQS_OPTIONS
        | frozenset(
            "unnormalized nbest print_step retain_dropout retain_dropout_modules no_seed_provided no_beamable_mm "
            "sacrebleu post_process path prefix_size replace_unk".split()
        )
    )
    VALIDATION_OPTIONS = frozenset(GENERATION_ARGUMENTS.values()) - {"print_alignment"} | {"unnormalized"}

    def __init__(self, cfg: TranslationInterleavedConfig, src_dict: Dictionary, tgt_dict: Dictionary) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self._order: GenerationOrder | None = None
        self._order_options = {
            name: value
            for name in ("num_directions", "words_per_direction", "middle_to_side")
            if (value := getattr(cfg, name)) is not None
        }
        GenerationOrder(**self._order_options)  # raises for values that contradict each other
        # Drafts are for autoregressive models, whose checkpoints need not say so.
        self._default = {"num_directions": 1} if draft_options(cfg) else {}

    @property
    def order(self) -> GenerationOrder:
        """The order of generation; fixed by the first checkpoint loaded, or else by the options at first use."""
        if self._order is None:
            self._order = GenerationOrder(**{**self._default, **self._order_options})
        return self._order

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "interleaving": asdict(self.order)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("interleaving")
        if saved is None and not self.order.left_to_right:
            raise ValueError(
                "the checkpoint was not trained with --task translation_interleaved; if it is an autoregressive "
                "Transformer, give --num-directions 1"
            )
        super().load_state_dict(state_dict)
        if saved is None:
            return  # a checkpoint of fairseq's translation task
        expected = self._order_options if self._order is None else asdict(self._order)
        conflicts = [
            f"--{name.replace('_', '-')} is {value}, the checkpoint has {saved[name]}"
            for name, value in expected.items()
            if value != saved[name]
        ]
        if conflicts:
            raise ValueError("; ".join(conflicts))
        self._order = GenerationOrder(**saved)

    def build_model(
        self, cfg: FairseqDataclass | Namespace, from_checkpoint: bool = False
    ) -> FairseqEncoderDecoderModel:
        """Build a model.

        Raises:
            ValueError: for a model that does not generate in this order.
        """
        name = getattr(cfg, "_name", None) or cfg.arch
        model = ARCH_MODEL_REGISTRY.get(name, object)
        autoregressive = issubclass(model, TransformerModelBase) and not issubclass(model, FairseqNATModel)
        if not (issubclass(model, IBDecoderModel) or (autoregressive and self.order.left_to_right)):
            raise ValueError(
                f"the architecture {name!r} does not generate in interleaved order: --task translation_interleaved "
                "is for the ibdecoder architectures, and with --num-directions 1 for Transformers"
            )
        if from_checkpoint and model in (TransformerModel, TransformerModelBase):
            cfg = as_plugin_transformer(cfg)
        return super().build_model(cfg, from_checkpoint)

    def build_criterion(self, cfg: FairseqDataclass, from_checkpoint: bool = False) -> FairseqCriterion:
        """Build a criterion.

        Raises:
            ValueError: for a criterion of NAT models, and for one that counts positions or alignments in reading order,
                unless words are generated in that order.
        """
        name = getattr(cfg, "_name", None)
        counted = "--ignore-prefix-size" if getattr(cfg, "ignore_prefix_size", 0) else None
        if name == "label_smoothed_cross_entropy_with_alignment":
            counted = f"--criterion {name}"
        if counted and not self.order.left_to_right:
            raise ValueError(f"{counted} is for targets from left to right, which --num-directions 1 writes")
        criterion = super().build_criterion(cfg, from_checkpoint)
        if isinstance(criterion, NATLoss):
            raise ValueError(f"--criterion {name}: it is for the models of --task translation_cmlmc")
        return criterion

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: object) -> None:
        super().load_dataset(split, epoch=epoch, combine=combine, **kwargs)
        self.datasets[split] = InterleavedPairDataset(self.datasets[split], self.order)

    def build_generator(
        self,
        models: list[FairseqEncoderDecoderModel],
        args: GenerationConfig | Namespace,
        seq_gen_cls: Optional[type] = None,
        extra_gen_cls_kwargs: Optional[dict[str, Any]] = None,
        prefix_allowed_tokens_fn: Optional[Callable[..., Any]] = None,
    ) -> Any:
        """The multi-word beam search with fairseq's generation options; fairseq's own search for those that only it
        has, which the log says.

        Raises:
            ValueError: naming the options that cannot be honoured.
        """
        self.refuse_unsupported(args)
        SearchOptions.from_generation_args(args, self.cfg)  # raises for wrong values
        if lacking := self._lacks(args, extra_gen_cls_kwargs, prefix_allowed_tokens_fn):
            return self._fairseqs_generator(
                lacking, models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn
            )
        generator = self._own_generator(models, args)
        if getattr(args, "prefix_size", 0) > 0:
            if not self.order.left_to_right:
                raise ValueError(f"--prefix-size {args.prefix_size}: {NOT_LEFT_TO_RIGHT}")
            if generator.engine_model() is None:
                lacking = [f"--prefix-size {args.prefix_size}"]
                return self._fairseqs_generator(lacking, models, args, seq_gen_cls, extra_gen_cls_kwargs, None)
        return generator

    def inference_step(self, *args: object, **kwargs: Any) -> Any:
        """As fairseq's.

        Raises:
            ValueError: where fairseq's search asserts that ``--min-len`` is not too large.
        """
        try:
            return super().inference_step(*args, **kwargs)
        except AssertionError as error:
            if not str(error).startswith("min_len"):
                raise
            raise ValueError(
                "--min-len exceeds the words that --max-len-a, --max-len-b and --max-target-positions allow for a "
                "sentence"
            ) from None

    def _own_generator(
        self, models: list[FairseqEncoderDecoderModel], args: GenerationConfig | Namespace
    ) -> MultiwordBeamSearch:
        options = SearchOptions.from_generation_args(args, self.cfg)
        if self.cfg.rescore_path is not None and options.beam_size < 2:
            raise ValueError("--rescore-path reranks hypotheses, and there is one: give --beam 2 or more")
        drafter = build_drafter(self, models)
        if drafter is not None:
            draft_words = self.cfg.draft_words
            return SpeculativeDecoding(
                models,
                self.target_dictionary,
                self.order,
                options,
                drafter,
                draft_words,
                self.use_engine,
                self.shortlist(),
            )
        reranking_model = load_reranking_model(self, models)
        return MultiwordBeamSearch(
            models, self.target_dictionary, self.order, options, reranking_model, self.use_engine, self.shortlist()
        )

    def _lacks(
        self,
        args: GenerationConfig | Namespace,
        extra_gen_cls_kwargs: Optional[dict[str, Any]],
        prefix_allowed_tokens_fn: Optional[Callable[..., Any]],
    ) -> list[str]:
        """Arguments of ``build_generator`` that only fairseq's search takes."""
        fields = GenerationConfig.__dataclass_fields__
        given = {name: getattr(args, name, fields[name].default) for name in sorted(FAIRSEQS_OPTIONS)}
        lacking = [
            f"--{name.replace('_', '-')} {value}" for name, value in given.items() if value != fields[name].default
        ]
        others = {"prefix_allowed_tokens_fn": prefix_allowed_tokens_fn, **(extra_gen_cls_kwargs or {})}
        # fairseq-generate gives the weight of a language model also without one.
        of_options = {"print_alignment", "lm_weight", *(("lm_model",) if given["lm_path"] else ())}
        return lacking + [name for name, value in others.items() if value is not None and name not in of_options]

    def _fairseqs_generator(
        self,
        lacking: list[str],
        models: list[FairseqEncoderDecoderModel],
        args: GenerationConfig | Namespace,
        seq_gen_cls: Optional[type],
        extra_gen_cls_kwargs: Optional[dict[str, Any]],
        prefix_allowed_tokens_fn: Optional[Callable[..., Any]],
    ) -> Any:
        """fairseq's own search.

        Raises:
            ValueError: for a model that does not write from left to right, and options that fairseq's search lacks.
        """
        if not (self.order.left_to_right and self.order.words_per_step == 1):
            raise ValueError(f"{', '.join(lacking)}: {NOT_LEFT_TO_RIGHT}")
        defaults = TranslationInterleavedConfig.__dataclass_fields__
        names = "length_penalty words_after_end finished deduplicate_ngrams repetition_penalty cuda_graphs rescore_path"
        names += " shortlist"
        given = [
            f"--{name.replace('_', '-')}" for name in names.split() if getattr(self.cfg, name) != defaults[name].default
        ]
        if own := [*given, *draft_options(self.cfg)]:
            hint = "; --shortlist none turns that of a model folder off" if "--shortlist" in own else ""
            raise ValueError(
                f"{', '.join(lacking)} needs fairseq's own search, which does not have {', '.join(own)}{hint}"
            )
        check_fairseqs_options(args, len(self.target_dictionary))
        logger.info("fairseq's own search decodes, in PyTorch and float32, which is slower: %s", ", ".join(lacking))
        build = GuardedTranslationTask.build_generator
        return build(self, models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)
