"""Informer (Zhou et al. 2021) with any attention of the registry: a long forecast in one pass.

The layers are fairseq's. What differs from the paper: self-attention is that of ``--encoder-self-attention-type`` and
``--decoder-self-attention-type``, softmax by default, not ProbSparse; and the encoder is the main stack alone, without
the copies that read the later half and quarter of the input.
"""

from argparse import Namespace
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from ett import STAMPS
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.modules import SinusoidalPositionalEmbedding, TransformerDecoderLayer, TransformerEncoderLayer
from torch import Tensor, nn

from amlp_fairseq.attention.registry import attention_options, build_attention, replace_attentions, supporting
from amlp_fairseq.attention.spec import AttentionSpec

SELF_ATTENTIONS = supporting("noncausal self", "causal self")


@dataclass
class InformerOptions(attention_options(encoder=False), attention_options(encoder=True), FairseqDataclass):  # type: ignore[misc]
    """Options of the model, and of the attentions, which read both; the defaults are Informer's."""

    encoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "self-attention of the encoder"}
    )
    decoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "self-attention of the decoder"}
    )
    unmasked_decoder: bool = field(
        default=False, metadata={"help": "positions of the decoder see later ones, too, which not all attentions need"}
    )
    encoder_embed_dim: int = field(default=512, metadata={"help": "width of the encoder"})
    encoder_ffn_embed_dim: int = field(default=2048, metadata={"help": "inner width of its feed-forward layers"})
    encoder_attention_heads: int = field(default=8, metadata={"help": "heads of its attention"})
    encoder_layers: int = field(default=2, metadata={"help": "layers; between two the length is halved"})
    decoder_embed_dim: int = field(default=512, metadata={"help": "width of the decoder"})
    decoder_ffn_embed_dim: int = field(default=2048, metadata={"help": "inner width of its feed-forward layers"})
    decoder_attention_heads: int = field(default=8, metadata={"help": "heads of its attentions"})
    decoder_layers: int = field(default=1, metadata={"help": "layers"})
    dropout: float = field(default=0.05, metadata={"help": "of embeddings and layers' outputs"})
    attention_dropout: float = field(default=0.05, metadata={"help": "of attention weights"})
    activation_dropout: float = field(default=0.05, metadata={"help": "inside feed-forward layers"})


class Informer(nn.Module):
    """Predicts H rows from the L rows before them.

    The decoder reads start tokens, the last rows of the input, and zeros in the place of the horizon: a value of the
    horizon cannot reach the forecast.

    Args:
        options: those of ``InformerOptions``, and ``decoder_cross_attention_type``.
        variables: C.
        input_length: L.
        start_length: how many rows are start tokens.
        horizon: H.

    Raises:
        ValueError: if there are more start tokens than inputs, the heads do not divide a width, or an attention cannot
            stand where it is asked for.
    """

    def __init__(self, options: Namespace, variables: int, input_length: int, start_length: int, horizon: int) -> None:
        super().__init__()
        if start_length > input_length:
            raise ValueError(f"--start-length {start_length} is more than --input-length {input_length}")
        for side in ("encoder", "decoder"):
            dim, heads = getattr(options, f"{side}_embed_dim"), getattr(options, f"{side}_attention_heads")
            if dim < 4 or heads < 1 or dim % heads:
                raise ValueError(
                    f"--{side}-embed-dim {dim} must be at least 4, and divisible by --{side}-attention-heads {heads}"
                )
        self.start_length, self.horizon = start_length, horizon
        lengths = {"max_source_positions": input_length, "max_target_positions": start_length + horizon}
        options = Namespace(**{**vars(options), **lengths, "activation_fn": "gelu"})
        self.pattern = "noncausal self" if options.unmasked_decoder else "causal self"
        name = options.decoder_self_attention_type
        if name not in supporting(self.pattern) and not options.unmasked_decoder:
            raise ValueError(
                f"--decoder-self-attention-type {name}: it cannot be masked; add --unmasked-decoder, or choose one of "
                + ", ".join(supporting(self.pattern))
            )
        source, target = options.encoder_embed_dim, options.decoder_embed_dim
        self.encoder_embedding = Embedding(variables, source, input_length, options.dropout)
        self.encoder_layers = nn.ModuleList(TransformerEncoderLayer(options) for _ in range(options.encoder_layers))
        replace_attentions(self.encoder_layers, options, "encoder")
        self.distilling = nn.ModuleList(Distilling(source) for _ in range(options.encoder_layers - 1))
        self.encoder_norm = nn.LayerNorm(source)
        self.decoder_embedding = Embedding(variables, target, start_length + horizon, options.dropout)
        self.decoder_layers = nn.ModuleList(TransformerDecoderLayer(options) for _ in range(options.decoder_layers))
        for i, layer in enumerate(self.decoder_layers):
            layer.self_attn = build_attention(AttentionSpec(options, "decoder", i, self.pattern))
            layer.encoder_attn = build_attention(AttentionSpec(options, "decoder", i, "noncausal cross"))
        self.decoder_norm = nn.LayerNorm(target)
        self.output = nn.Linear(target, variables)

    def forward(self, inputs: Tensor, stamps: Tensor) -> Tensor:
        """The forecast (B, H, C) from inputs (B, L, C) and the stamps of inputs and horizon (B, L + H, STAMPS)."""
        known = inputs.size(1) - self.start_length
        x = self.encode(self.encoder_embedding(inputs, stamps[:, : inputs.size(1)]))
        y = self.decoder_embedding(F.pad(inputs[:, known:], (0, 0, 0, self.horizon)), stamps[:, known:])
        y, mask = y.transpose(0, 1), None
        if self.pattern == "causal self":
            mask = torch.full((len(y), len(y)), float("-inf"), device=y.device).triu(1)
        for layer in self.decoder_layers:
            y = layer(y, x, self_attn_mask=mask)[0]
        forecast: Tensor = self.output(self.decoder_norm(y[self.start_length :])).transpose(0, 1)
        return forecast

    def encode(self, x: Tensor) -> Tensor:
        """(B, L, d) to (L', B, d); each layer but the last halves the length, rounded up."""
        x = x.transpose(0, 1)
        for i, layer in enumerate(self.encoder_layers):
            x = layer(x if i == 0 else self.distilling[i - 1](x), None)
        normed: Tensor = self.encoder_norm(x)
        return normed


class Embedding(nn.Module):
    """The sum of a circular convolution of width 3 over the values, of sinusoidal positions, and of mapped stamps."""

    positions: Tensor

    def __init__(self, variables: int, dim: int, length: int, dropout: float) -> None:
        super().__init__()
        self.values = nn.Conv1d(variables, dim, 3, padding=1, padding_mode="circular")
        self.register_buffer("positions", SinusoidalPositionalEmbedding.get_embedding(length, dim), persistent=False)
        self.stamps = nn.Linear(STAMPS, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor, stamps: Tensor) -> Tensor:
        """(B, T, C) and (B, T, STAMPS) to (B, T, d)."""
        of_values = self.values(values.transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.dropout(of_values + self.positions + self.stamps(stamps))
        return out


class Distilling(nn.Module):
    """``X_{j+1} = MaxPool(ELU(Conv1d(X_j)))`` (Informer, Eq. 5) with widths of 3 and stride 2, and a batch norm after
    the convolution, as in its published code: (T, B, d) to (⌈T/2⌉, B, d)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        conv = nn.Conv1d(dim, dim, 3, padding=1, padding_mode="circular")
        self.layers = nn.Sequential(conv, nn.BatchNorm1d(dim), nn.ELU(), nn.MaxPool1d(3, stride=2, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x.permute(1, 2, 0)).permute(2, 0, 1)
        return out
