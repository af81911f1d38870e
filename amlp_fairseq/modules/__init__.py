"""Neural network layers; importing registers the attentions."""

from amlp_fairseq.modules import (  # noqa: F401
    abc,
    amlp,
    average_attention,
    cnn,
    cosformer,
    dynamic_conv,
    gmlp,
    linear,
    local,
    softmax,
    xca,
)
