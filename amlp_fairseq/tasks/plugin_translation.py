"""What every translation task of the plugin adds to fairseq's: complete batches, and errors that name their cause."""

import hashlib
import os
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.configs import GenerationConfig
from fairseq.tasks.translation import TranslationTask

from amlp_fairseq.decoding.packed_linear import DECODE_DTYPES


@dataclass
class DecodingConfig(FairseqDataclass):
    """Options of the plugin's generators."""

    decode_dtype: Optional[ChoiceEnum(DECODE_DTYPES)] = field(  # type: ignore[valid-type]
        default=None,
        metadata={"help": "type of the weights when decoding: int8 on x86, float16 on CUDA (default: as they are)"},
    )
    cuda_graphs: bool = field(
        default=False,
        metadata={"help": "replay decoder calls as CUDA graphs"},
    )


class PluginTranslationTask(TranslationTask):
    """fairseq's translation task without its traps.

    - No sentence is lost: stock drops the rest of the last batch when ``--required-batch-size-multiple`` (8 by
      default) does not divide its size.
    - The checkpoint keeps fingerprints of the dictionaries that it was trained with; others are refused.
    """

    #: Generation options that the task's generator honours; any other that is not at its default is an error.
    HONOURED_GENERATION_OPTIONS: frozenset[str] = frozenset()

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "PluginTranslationTask":
        for path in utils.split_paths(cfg.data or ""):
            if not os.path.isdir(path):
                raise FileNotFoundError(f"the data folder {path!r} does not exist (made by fairseq-preprocess)")
        return super().setup_task(cfg, **kwargs)

    def get_batch_iterator(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["required_batch_size_multiple"] = 1
        return super().get_batch_iterator(*args, **kwargs)

    def filter_indices_by_size(
        self, indices: Any, dataset: Any, max_positions: Any = None, ignore_invalid_inputs: bool = False
    ) -> Any:
        _, ignored = dataset.filter_indices_by_size(indices, max_positions)
        if len(ignored) > 0 and not ignore_invalid_inputs:
            raise ValueError(
                f"{len(ignored)} sentence(s) are too long, the first is sentence {ignored[0]} with (source, target) "
                f"lengths {dataset.size(ignored[0])}; --max-source-positions and --max-target-positions allow "
                f"{max_positions}. Raise them, or cut long sources with --truncate-source, or leave such sentences out "
                "with --skip-invalid-size-inputs-valid-test"
            )
        return super().filter_indices_by_size(indices, dataset, max_positions, ignore_invalid_inputs)

    def state_dict(self) -> dict[str, Any]:
        """The task's state in a checkpoint: fingerprints of its dictionaries."""
        return {**super().state_dict(), "dictionaries": self._fingerprints()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the task's state from a checkpoint.

        Raises:
            ValueError: if the checkpoint belongs to other dictionaries or to a task that is not the plugin's.
        """
        saved = state_dict.get("dictionaries")
        if saved is None:
            raise ValueError(
                f"the checkpoint was not trained with a task of amlp_fairseq, so {type(self).__name__} cannot use it"
            )
        for side, fingerprint in self._fingerprints().items():
            if saved[side] != fingerprint:
                raise ValueError(
                    f"the {side} dictionary of {self.cfg.data} ({fingerprint}) is not the one that the model was "
                    f"trained with ({saved[side]}): binarize the data with the model's dict.*.txt "
                    "(fairseq-preprocess --srcdict, --tgtdict)"
                )

    def _fingerprints(self) -> dict[str, str]:
        return {"source": _fingerprint(self.src_dict), "target": _fingerprint(self.tgt_dict)}

    def refuse_unsupported_generation_options(
        self, args: Any, extra_gen_cls_kwargs: Any, prefix_allowed_tokens_fn: Any
    ) -> None:
        """Check the arguments of ``build_generator``.

        Raises:
            ValueError: naming those that would have no effect: generation options that are set, a language model, a
                function for prefixes.
        """
        refused = []
        for name, option in GenerationConfig.__dataclass_fields__.items():
            value = getattr(args, name, option.default)
            if name not in self.HONOURED_GENERATION_OPTIONS and value != option.default:
                refused.append(f"--{name.replace('_', '-')} {value}")
        if refused:
            raise ValueError(f"{type(self).__name__} does not support {', '.join(refused)}")
        if prefix_allowed_tokens_fn is not None or (extra_gen_cls_kwargs or {}).get("lm_model") is not None:
            raise ValueError(f"{type(self).__name__} does not support prefix_allowed_tokens_fn or a language model")


def _fingerprint(dictionary: Dictionary) -> str:
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()
    return f"{len(dictionary)} entries, sha256 {digest[:16]}"
