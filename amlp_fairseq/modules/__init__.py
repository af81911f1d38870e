"""Neural network layers; importing registers the self-attentions."""

from amlp_fairseq.modules import average_attention, cnn, dynamic_conv, local_attention  # noqa: F401
