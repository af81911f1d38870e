"""Layers of softmax attention on a CPU, in C++."""

from amlp_fairseq.ops.softmax_layers.layers import SOURCE, compiled_layers

__all__ = ["SOURCE", "compiled_layers"]
