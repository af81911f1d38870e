"""Models: one file is one family and its architectures."""

from amlp_fairseq.models import average_attention, cmlmc, fertility, interleaved_decoder, light_conv  # noqa: F401
