"""Non-autoregressive translation with fertilities (Gu et al. 2018), after the lecture on attention.

The encoder's output at source word i predicts its fertility f_i, the number of target words that it generates. The
decoder reads every source word f_i times, in source order, and writes all target words in parallel:

    p(y|x) = Σ_f Π_i p_F(f_i|x) Π_t p(y_t|x, f)                                  over all f with Σ_i f_i = T
    loss   = - Σ_i log p_F(f*_i|x) - Σ_t log p(y_t|x, f*)                        f* from alignments of the training data
    search = G(x, argmax_f p_F), or the best G(x, f) of sampled f ~ p_F,         G(x, f)_t = argmax_y p(y|x, f)
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models.nat import FairseqNATEncoder, NATransformerDecoder, NATransformerModel, ensemble_decoder
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks import FairseqTask
from omegaconf import II
from torch import Tensor, nn

from amlp_fairseq.attention.registry import replace_attentions
from amlp_fairseq.compat.internals import DecoderOut
from amlp_fairseq.compat.registration import register_model
from amlp_fairseq.models.nat_decoder_layer import NATDecoderLayer
from amlp_fairseq.models.nat_model import NATModel
from amlp_fairseq.models.plugin_transformer import ModelConfig, PluginTransformerConfig, register_sizes


@dataclass
class FertilityConfig(PluginTransformerConfig):
    """Options of ``fertility_transformer``: options of the plugin's Transformer, and new ones."""

    UNSUPPORTED = frozenset({"layernorm_embedding"})  # fairseq's NAT decoder ignores it

    max_fertility: int = field(
        default=50, metadata={"help": "the most target words that one source word can be predicted to stand for"}
    )
    label_smoothing: float = II("criterion.label_smoothing")


class FertilityEncoder(FairseqNATEncoder):
    """fairseq's NAT encoder with the attention of ``--encoder-self-attention-type``."""

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        replace_attentions(self.layers, cfg.options, "encoder")


class FertilityDecoder(NATransformerDecoder):
    """fairseq's NAT decoder with the attentions of ``--decoder-self-attention-type`` and
    ``--decoder-cross-attention-type``, and p_F instead of p(T|x)."""

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.layers = nn.ModuleList(NATDecoderLayer(cfg, i, repos=False) for i in range(cfg.decoder.layers))
        self.embed_length = None
        self.fertility = nn.Linear(cfg.encoder.embed_dim, cfg.options.max_fertility + 1)

    @ensemble_decoder
    def forward_fertility(self, normalize: bool, encoder_out: dict[str, Any]) -> Tensor:
        """log p_F(f_i|x) for f_i = 0 … ``--max-fertility``, (B, S, classes); the logits if not ``normalize``."""
        logits = self.fertility(encoder_out["encoder_out"][0].transpose(0, 1))
        return F.log_softmax(logits.float(), dim=-1) if normalize else logits


@register_model("fertility_transformer", dataclass=FertilityConfig)
class FertilityTransformerModel(NATModel, NATransformerModel):
    """NAT with fertilities. Sources and targets begin with ``<s>`` and end with ``</s>``; their fertilities are 1 and
    are not predicted."""

    NAME, CONFIG = "fertility_transformer", FertilityConfig

    @classmethod
    def build_model(cls, cfg: ModelConfig, task: FairseqTask) -> "FertilityTransformerModel":
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
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> FertilityEncoder:
        return FertilityEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> FertilityDecoder:
        return FertilityDecoder(cfg, tgt_dict, embed_tokens)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        tgt_tokens: Tensor,
        fertilities: Tensor | None = None,
        **kwargs: object,
    ) -> dict[str, dict[str, Any]]:
        """Logits, targets, masks and weights of the losses, as ``fertility_nat_loss`` expects them.

        Args:
            src_tokens: (B, S).
            src_lengths: (B,).
            prev_output_tokens: ignored.
            tgt_tokens: the target, (B, T).
            fertilities: f* (B, S); each row sums to the length of its target.

        Returns:
            ``word_ins`` and ``fertility``. Both losses are means over words. The weight of ``fertility`` is (source
            words) / (target words), so that the total is the sum over target and source words divided by the number of
            target words.
        """
        if fertilities is None:
            raise ValueError("a fertility_transformer needs --criterion fertility_nat_loss")
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths, **kwargs)
        copies = self.copies(src_tokens, fertilities)
        copies = F.pad(copies, (0, tgt_tokens.size(1) - copies.size(1)), value=self.pad)  # to the width of the batch
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
        self, decoder_out: DecoderOut, encoder_out: dict[str, Any], decoding_format: None = None, **kwargs: object
    ) -> DecoderOut:
        """Predict G(x, f): all words in parallel, given the copies of the source words."""
        tokens, history = decoder_out.output_tokens, decoder_out.history
        words = self.words(tokens)
        new_scores, new_tokens = self.predict(tokens, encoder_out)
        tokens = torch.where(words, new_tokens, tokens)
        if history is not None:
            history.append(tokens)
        scores = torch.where(words, new_scores, decoder_out.output_scores)
        return decoder_out._replace(output_tokens=tokens, output_scores=scores, attn=None, history=history)

    def converged(self, before: DecoderOut, after: DecoderOut) -> Tensor:
        """See ``ConvergingModel``: all rows have converged after the only pass."""
        return torch.ones(len(after.output_tokens), dtype=torch.bool, device=after.output_tokens.device)

    def initialize_output_tokens(self, encoder_out: dict[str, Any], src_tokens: Tensor) -> DecoderOut:
        """Copies of the source words, by their most probable fertilities."""
        return self.initialize_candidates(encoder_out, src_tokens, 1)

    def initialize_candidates(self, encoder_out: dict[str, Any], src_tokens: Tensor, count: int) -> DecoderOut:
        """See ``CandidateModel``. The first candidate has the most probable fertilities, the other candidates have
        samples of p_F. The samples of a source do not depend on its batch."""
        log_probs = self.decoder.forward_fertility(normalize=True, encoder_out=encoder_out)
        # Gumbel-max: argmax_f (log p_F(f) + g_f) is a sample of p_F. g is the same for word i of every sentence.
        uniform = np.random.default_rng(0).random((src_tokens.size(1), count, log_probs.size(2)))
        gumbel = torch.from_numpy(-np.log(-np.log(uniform))).to(log_probs)
        gumbel[:, 0] = 0
        word = (src_tokens.ne(self.pad).cumsum(dim=1) - 1).clamp(min=0)
        sampled = (log_probs.unsqueeze(2) + gumbel[word]).argmax(dim=-1)  # (B, S, count)
        rows = src_tokens.repeat_interleave(count, dim=0)
        return self._initial_state(rows, sampled.transpose(1, 2).flatten(0, 1), encoder_out)

    def _initial_state(self, src_tokens: Tensor, fertilities: Tensor, encoder_out: dict[str, Any]) -> DecoderOut:
        """First input of the decoder, given the fertilities of the words (rows, S), truncated to its maximum length."""
        ends = fertilities.masked_fill(~self.words(src_tokens), 0).cumsum(dim=1)
        ends = ends.clamp(max=self.max_decoder_positions() - 2)
        fertilities = ends.diff(dim=1, prepend=torch.zeros_like(ends[:, :1]))
        tokens = self.copies(src_tokens, fertilities + (src_tokens.eq(self.bos) | src_tokens.eq(self.eos)).long())
        scores = torch.zeros_like(tokens, dtype=encoder_out["encoder_out"][0].dtype)
        return DecoderOut(output_tokens=tokens, output_scores=scores, attn=None, step=0, max_step=0, history=None)

    def copies(self, src_tokens: Tensor, fertilities: Tensor) -> Tensor:
        """Tokens (B, S) repeated by their fertilities (B, S): (B, T), padded on the right; T is the maximum sum."""
        ends = fertilities.cumsum(dim=1)
        positions = torch.arange(int(ends[:, -1].max()), device=ends.device).repeat(len(ends), 1)
        sources = torch.searchsorted(ends, positions, right=True).clamp(max=src_tokens.size(1) - 1)
        return src_tokens.gather(1, sources).masked_fill(positions >= ends[:, -1:], self.pad)


register_sizes("fertility_transformer")
