"""Non-autoregressive translation with fertilities (Gu et al. 2018), after the lecture on attention.

The encoder's output at source word i predicts its fertility f_i, how many words of the target stand for it. The decoder
reads every source word f_i times, in the order of the source, and writes all words of the target at once:

    p(y|x) = Σ_f Π_i p_F(f_i|x) Π_t p(y_t|x, f)                                  over all f with Σ_i f_i = T
    loss   = - Σ_i log p_F(f*_i|x) - Σ_t log p(y_t|x, f*)                        f* from alignments of the training data
    search = G(x, argmax_f p_F), or of G(x, f) for sampled f ~ p_F the best one  G(x, f)_t = argmax_y p(y|x, f)
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.models.nat import FairseqNATEncoder, NATransformerDecoder, NATransformerModel, ensemble_decoder
from fairseq.models.transformer import TransformerConfig
from omegaconf import II
from torch import Tensor, nn

from amlp_fairseq.attention.registry import replace_attentions
from amlp_fairseq.compat.internals import DecoderOut
from amlp_fairseq.compat.registration import register_model
from amlp_fairseq.models.nat_decoder_layer import NATDecoderLayer
from amlp_fairseq.models.nat_model import NATModel
from amlp_fairseq.models.plugin_transformer import PluginTransformerConfig, register_sizes


@dataclass
class FertilityConfig(PluginTransformerConfig):
    """Options of ``fertility_transformer``: the plugin's Transformer's, and its own."""

    UNSUPPORTED = frozenset({"layernorm_embedding"})  # fairseq's NAT decoder ignores it

    max_fertility: int = field(
        default=50, metadata={"help": "the most target words that one source word can be predicted to stand for"}
    )
    label_smoothing: float = II("criterion.label_smoothing")


class FertilityEncoder(FairseqNATEncoder):
    """fairseq's NAT encoder with the attention of ``--encoder-self-attention-type``."""

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        replace_attentions(self.layers, cfg.options, "encoder")


class FertilityDecoder(NATransformerDecoder):
    """fairseq's NAT decoder with the attentions of ``--decoder-self-attention-type`` and
    ``--decoder-cross-attention-type``, and p_F in place of p(T|x)."""

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.layers = nn.ModuleList(NATDecoderLayer(cfg, i, repos=False) for i in range(cfg.decoder.layers))
        self.embed_length = None
        self.fertility = nn.Linear(cfg.encoder.embed_dim, cfg.options.max_fertility + 1)

    @ensemble_decoder
    def forward_fertility(self, normalize: bool, encoder_out: dict[str, Any]) -> Tensor:
        """log p_F(f_i|x) for f_i = 0 … ``--max-fertility`` (B, S, classes), or its logits unless ``normalize``."""
        logits = self.fertility(encoder_out["encoder_out"][0].transpose(0, 1))
        return F.log_softmax(logits.float(), dim=-1) if normalize else logits


@register_model("fertility_transformer", dataclass=FertilityConfig)
class FertilityTransformerModel(NATModel, NATransformerModel):
    """NAT with fertilities. Sources and targets begin with ``<s>`` and end with ``</s>``, whose fertilities are 1 and
    not predicted."""

    NAME, CONFIG = "fertility_transformer", FertilityConfig

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> Any:
        if cfg.max_fertility < 1:
            raise ValueError(f"--max-fertility {cfg.max_fertility} must be at least 1")
        model = super().build_model(cfg, task)
        if task.source_dictionary != task.target_dictionary:
            raise ValueError(
                "the decoder of a fertility_transformer reads words of the source: the data need one dictionary for "
                "both languages (fairseq-preprocess --joined-dictionary)"
            )
        return model

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Any, embed_tokens: nn.Embedding) -> FertilityEncoder:
        return FertilityEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Any, embed_tokens: nn.Embedding) -> FertilityDecoder:
        return FertilityDecoder(cfg, tgt_dict, embed_tokens)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, tgt_tokens: Tensor, **kwargs: Any
    ) -> dict[str, dict[str, Any]]:
        """What ``fertility_nat_loss`` takes: logits, targets, masks and weights of the losses.

        Args:
            src_tokens: (B, S).
            src_lengths: (B,).
            prev_output_tokens: not read.
            tgt_tokens: the target, (B, T).
            fertilities: f* (B, S), which sum to the lengths of the targets.

        Returns:
            ``word_ins`` and ``fertility``. Both are means over words; the weight of the second makes their sum that of
            the sums over the words of target and source, for each word of the target.
        """
        fertilities = kwargs.pop("fertilities", None)
        if fertilities is None:
            raise ValueError("a fertility_transformer needs --criterion fertility_nat_loss")
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths, **kwargs)
        copies = self.copies(src_tokens, fertilities)
        copies = F.pad(copies, (0, tgt_tokens.size(1) - copies.size(1)), value=self.pad)  # as the batch is
        source_words, words = self.words(src_tokens), self.words(tgt_tokens)
        return {
            "word_ins": {
                "out": self.decoder(normalize=False, prev_output_tokens=copies, encoder_out=encoder_out),
                "tgt": tgt_tokens,
                "mask": words,
                "ls": self.args.options.label_smoothing,
                "nll_loss": True,
            },
            "fertility": {
                "out": self.decoder.forward_fertility(normalize=False, encoder_out=encoder_out),
                "tgt": fertilities.clamp(max=self.args.options.max_fertility),
                "mask": source_words,
                "factor": source_words.sum().clamp(min=1) / words.sum().clamp(min=1),
            },
        }

    def forward_decoder(
        self, decoder_out: DecoderOut, encoder_out: dict[str, Any], decoding_format: None = None, **kwargs: Any
    ) -> DecoderOut:
        """G(x, f): all words at once, given the copies of the source's."""
        tokens, history = decoder_out.output_tokens, decoder_out.history
        words = self.words(tokens)
        new_scores, new_tokens = self.predict(tokens, encoder_out)
        tokens = torch.where(words, new_tokens, tokens)
        if history is not None:
            history.append(tokens)
        scores = torch.where(words, new_scores, decoder_out.output_scores)
        return decoder_out._replace(output_tokens=tokens, output_scores=scores, attn=None, history=history)

    def converged(self, before: DecoderOut, after: DecoderOut) -> Tensor:
        """Which rows (B,) are finished: all, after their only pass."""
        return torch.ones(len(after.output_tokens), dtype=torch.bool, device=after.output_tokens.device)

    def initialize_output_tokens(self, encoder_out: dict[str, Any], src_tokens: Tensor) -> DecoderOut:
        """The words of the source, as often as is likeliest for each."""
        return self.initialize_candidates(encoder_out, src_tokens, 1)

    def initialize_candidates(self, encoder_out: dict[str, Any], src_tokens: Tensor, count: int) -> DecoderOut:
        """``count`` rows for each sentence: the likeliest fertilities, then samples of p_F. The same source gives the
        same samples, whatever batch it is in."""
        log_probs = self.decoder.forward_fertility(normalize=True, encoder_out=encoder_out)
        # Gumbel-max: argmax_f (log p_F(f) + g_f) is a sample of p_F. g is the same for word i of every sentence.
        uniform = np.random.default_rng(0).random((src_tokens.size(1), count, log_probs.size(2)))
        gumbel = torch.from_numpy(-np.log(-np.log(uniform))).to(log_probs)
        gumbel[:, 0] = 0
        word = (src_tokens.ne(self.pad).cumsum(dim=1) - 1).clamp(min=0)
        sampled = (log_probs.unsqueeze(2) + gumbel[word]).argmax(dim=-1)  # (B, S, count)
        rows = src_tokens.repeat_interleave(count, dim=0)
        return self._copied(rows, sampled.transpose(1, 2).flatten(0, 1), encoder_out)

    def _copied(self, src_tokens: Tensor, fertilities: Tensor, encoder_out: dict[str, Any]) -> DecoderOut:
        """What the decoder reads, given the fertilities of the words (rows, S); at most as much as it can write."""
        ends = fertilities.masked_fill(~self.words(src_tokens), 0).cumsum(dim=1)
        ends = ends.clamp(max=self.max_decoder_positions() - 2)
        fertilities = ends.diff(dim=1, prepend=torch.zeros_like(ends[:, :1]))
        tokens = self.copies(src_tokens, fertilities + (src_tokens.eq(self.bos) | src_tokens.eq(self.eos)).long())
        scores = torch.zeros_like(tokens, dtype=encoder_out["encoder_out"][0].dtype)
        return DecoderOut(output_tokens=tokens, output_scores=scores, attn=None, step=0, max_step=0, history=None)

    def copies(self, src_tokens: Tensor, fertilities: Tensor) -> Tensor:
        """Every token as often as its fertility, (B, S) each: (B, T), padded on the right; T is the largest sum."""
        ends = fertilities.cumsum(dim=1)
        positions = torch.arange(int(ends[:, -1].max()), device=ends.device).repeat(len(ends), 1)
        sources = torch.searchsorted(ends, positions, right=True).clamp(max=src_tokens.size(1) - 1)
        return src_tokens.gather(1, sources).masked_fill(positions >= ends[:, -1:], self.pad)


register_sizes("fertility_transformer")
