"""Models: one file is one family and its architectures."""

from amlp_fairseq.models import (  # noqa: F401
    average_attention,
    cmlmc,
    fertility,
    interleaved_decoder,
    light_conv,
    speech_to_speech,
    text_to_speech,
)
