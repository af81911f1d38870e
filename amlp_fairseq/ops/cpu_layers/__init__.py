"""Linear maps and layers of decoders and encoders for CPUs in C++."""

from amlp_fairseq.ops.cpu_layers.layers import (
    SOURCE,
    compiled_amlp_cov,
    compiled_amlp_pquery,
    compiled_average,
    compiled_bounded_memory,
    compiled_convolution,
    compiled_decoder,
    compiled_embedding,
    compiled_layers,
    compiled_map,
)

__all__ = [
    "SOURCE",
    "compiled_amlp_cov",
    "compiled_amlp_pquery",
    "compiled_average",
    "compiled_bounded_memory",
    "compiled_convolution",
    "compiled_decoder",
    "compiled_embedding",
    "compiled_layers",
    "compiled_map",
]
