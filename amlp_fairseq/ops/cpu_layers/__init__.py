"""Linear maps and layers of softmax attention on a CPU, in C++."""

from amlp_fairseq.ops.cpu_layers.layers import (
    SOURCE,
    compiled_decoder,
    compiled_embedding,
    compiled_layers,
    compiled_map,
)

__all__ = ["SOURCE", "compiled_decoder", "compiled_embedding", "compiled_layers", "compiled_map"]
