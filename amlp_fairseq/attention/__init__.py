"""The registry of attentions, one file each; importing registers the attentions."""

from amlp_fairseq.attention import (  # noqa: F401
    abc,
    amlp,
    average,
    cnn,
    cosformer,
    dynamic_conv,
    gmlp,
    linear,
    local,
    softmax,
    xca,
)
