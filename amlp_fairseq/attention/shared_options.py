"""Options shared by several attentions."""

from dataclasses import dataclass, field
from typing import List  # noqa: UP035  (fairseq knows List[X], not list[X])

from fairseq.dataclass import ChoiceEnum

from amlp_fairseq.ops.backend import BACKENDS, VARIABLE


@dataclass
class OperatorOptions:
    """Option of the attentions with operators in ``ops/``."""

    operator_backend: ChoiceEnum(list(BACKENDS)) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "implementation of convolutions and covariances: 'torch', 'triton', or the one that suits the "
            f"device ('auto', which the environment variable {VARIABLE} can change)"
        },
    )


@dataclass
class InnerDimOptions:
    """Option of the attentions with c means, inner dimensions or features."""

    attention_inner_dim: int = field(
        default=16, metadata={"help": "c: means of keys in 'abc', inner width of AMLP, random features of 'performer'"}
    )


@dataclass
class KernelSizeOptions:
    """Options of the attentions with windows of k positions, see ``AttentionSpec.kernel_size``."""

    encoder_kernel_size_list: List[int] = field(  # noqa: UP006
        default_factory=lambda: [3, 7, 15, 31, 31, 31, 31],
        metadata={"help": "widths of the encoder's convolutions or local windows; one number is for all layers"},
    )
    decoder_kernel_size_list: List[int] = field(  # noqa: UP006
        default_factory=lambda: [3, 7, 15, 31, 31, 31],
        metadata={"help": "widths of the decoder's convolutions or local windows; one number is for all layers"},
    )
