"""Attentions, one file each; importing this package registers all of them (``registry.py``)."""

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
    ssru,
    xca,
)
