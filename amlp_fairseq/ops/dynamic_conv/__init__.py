"""Dynamic and lightweight convolution (Wu et al. 2019)."""

from amlp_fairseq.ops.dynamic_conv.op import dynamic_conv, light_conv

__all__ = ["dynamic_conv", "light_conv"]
