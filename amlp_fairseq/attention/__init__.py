"""The registry of attentions, one file each; importing registers the attentions."""

from amlp_fairseq.attention import (  # noqa: F401
    abc,
    amlp,
    average,
    cnn,
    concat,
    cosformer,
    dynamic_conv,
    general,
    gmlp,
    linear,
    local,
    local_p,
    softmax,
    xca,
)
