"""CMLMC: conditional masked language model with correction, with any attention of the registry.

Sources: Huang, Perez and Volkovs, "Improving Non-Autoregressive Translation Models Without Distillation" (2022), on
top of CMLM (Ghazvininejad et al. 2019), fairseq's ``cmlm_transformer``; Jiang et al. (2023) for AMLP in its
decoder. CMLMC makes three optional changes to CMLM:

1. RePos: a causal self-attention after the unmasked self-attention in every decoder layer (softmax in the paper);
2. word and position embeddings are concatenated and mapped to the width of the model, instead of scaled and added;
3. correction loss: a second pass replaces some revealed words by the model's predictions, and the model learns to
correct
   them.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model_architecture
from fairseq.models.nat import CMLMNATransformerModel, FairseqNATEncoder
from fairseq.models.transformer import TransformerConfig
from omegaconf import II
from torch import Tensor, nn

from amlp_fairseq.attention.registry import replace_attentions, supporting
from amlp_fairseq.compat.internals import DecoderOut, init_bert_params
from amlp_fairseq.compat.registration import register_model
from amlp_fairseq.models.interfaces import ParallelDecoder
from amlp_fairseq.models.nat_decoder_layer import NATDecoderLayer
from amlp_fairseq.models.nat_model import NATModel
from amlp_fairseq.models.plugin_transformer import (
    PluginTransformerConfig,
    register_sizes,
    set_defaults,
    wmt_en_de,
)

M = TypeVar("M", bound=nn.Module)


@dataclass
class CMLMCConfig(PluginTransformerConfig):
    """Options of ``cmlmc_transformer``: options of the plugin's Transformer, of ``cmlm_transformer``, and new ones."""

    #: Two options conflict with concatenated positions; fairseq's NAT decoder ignores ``layernorm_embedding``.
    UNSUPPORTED = frozenset({"no_scale_embedding", "layernorm_embedding", "no_token_positional_embeddings"})

    no_repos: bool = field(default=False, metadata={"help": "no causal self-attention in the decoder's layers"})
    repos_attention_type: ChoiceEnum(supporting("causal self")) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "causal self-attention of the decoder (RePos)"}
    )
    no_concatenated_positions: bool = field(
        default=False, metadata={"help": "add position embeddings to scaled word embeddings"}
    )
    self_correction: int = field(
        default=0,
        metadata={"help": "updates after which the correction loss begins; -1: never, and only masks are predicted"},
    )
    replace_factor: float = field(
        default=0.3, metadata={"help": "share of the revealed words that the correction loss replaces by guesses"}
    )
    glancing_ratio: float = field(
        default=0.0,
        metadata={
            "help": "for decoding in one pass: training masks all words but as many, drawn at random, as this share of "
            "those that the model guesses wrongly from masks alone; 0: those that --noise leaves"
        },
    )
    apply_bert_init: bool = field(default=False, metadata={"help": "initialise the parameters as BERT does"})
    pred_length_offset: bool = field(
        default=False, metadata={"help": "predict the difference between the lengths of target and source"}
    )
    sg_length_pred: bool = field(
        default=False, metadata={"help": "no gradients from the length prediction to the encoder"}
    )
    length_loss_factor: float = field(default=0.1, metadata={"help": "weight of the length prediction's loss"})
    label_smoothing: float = II("criterion.label_smoothing")


class CMLMCEncoder(FairseqNATEncoder):
    """fairseq's NAT encoder with the attention of ``--encoder-self-attention-type``."""

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        replace_attentions(self.layers, cfg.options, "encoder")
        self.join_positions = _position_map(cfg.options, cfg.encoder.embed_dim)

    def forward_embedding(self, src_tokens: Tensor, token_embedding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if self.join_positions is None:
            return super().forward_embedding(src_tokens, token_embedding)
        embedding = self.embed_tokens(src_tokens) if token_embedding is None else token_embedding
        x = self.join_positions(torch.cat([embedding, self.embed_positions(src_tokens)], dim=-1))
        return self.dropout_module(x), embedding


class CMLMCDecoder(ParallelDecoder):
    """fairseq's NAT decoder with the attentions of ``--decoder-self-attention-type`` and
    ``--decoder-cross-attention-type``, and RePos with the attention of ``--repos-attention-type``."""

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        repos = not cfg.options.no_repos
        self.layers = nn.ModuleList(NATDecoderLayer(cfg, i, repos) for i in range(cfg.decoder.layers))
        self.join_positions = _position_map(cfg.options, cfg.decoder.embed_dim)

    def forward_embedding(self, prev_output_tokens: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if self.join_positions is None:
            return super().forward_embedding(prev_output_tokens, states)
        embedding = self.embed_tokens(prev_output_tokens) if states is None else states
        x = self.join_positions(torch.cat([embedding, self.embed_positions(prev_output_tokens)], dim=-1))
        return self.dropout_module(x), prev_output_tokens.eq(self.padding_idx)

    def forward_length_prediction(
        self, length_out: Tensor, encoder_out: dict[str, Any], tgt_tokens: Tensor | None = None
    ) -> Tensor:
        """Predict as fairseq, but count source positions in float32: fairseq counts in the dtype of the encoder's
        output, and bfloat16 has no odd integers above 256."""
        output = encoder_out["encoder_out"][0]
        in_float = {**encoder_out, "encoder_out": [output.new_empty(*output.shape[:2], 0, dtype=torch.float)]}
        return super().forward_length_prediction(length_out, in_float, tgt_tokens)


def _position_map(options: Namespace, dim: int) -> nn.Linear | None:
    """Map W of ``W [x; pos]``, 2d → d; None with ``--no-concatenated-positions``.

    Without ``--apply-bert-init`` W is initialised to [√d I; I], the sum of scaled words and positions: with unscaled
    words, sinusoidal positions dominate the input of a small model for more than a thousand updates.
    """
    if options.no_concatenated_positions:
        return None
    result = nn.Linear(2 * dim, dim)
    with torch.no_grad():
        result.weight.copy_(torch.cat([dim**0.5 * torch.eye(dim), torch.eye(dim)], dim=1))
        result.bias.zero_()
    return result


@register_model("cmlmc_transformer", dataclass=CMLMCConfig)
class CMLMCTransformerModel(NATModel, CMLMNATransformerModel):
    """CMLMC model. As in fairseq's NAT models the mask is ``<unk>``; targets begin with ``<s>`` and end with
    ``</s>``."""

    NAME, CONFIG = "cmlmc_transformer", CMLMCConfig

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding) -> CMLMCEncoder:
        return _initialised(CMLMCEncoder(cfg, src_dict, embed_tokens), cfg)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> CMLMCDecoder:
        return _initialised(CMLMCDecoder(cfg, tgt_dict, embed_tokens), cfg)

    def __init__(self, args: TransformerConfig, encoder: CMLMCEncoder, decoder: CMLMCDecoder) -> None:
        super().__init__(args, encoder, decoder)
        for name in ("replace_factor", "glancing_ratio"):
            if not 0 <= (share := getattr(args.options, name)) <= 1:
                raise ValueError(f"--{name.replace('_', '-')} {share} must be between 0 and 1")
        self.correction_starts = args.options.self_correction
        self.num_updates = 0

    def set_num_updates(self, num_updates: int) -> None:
        super().set_num_updates(num_updates)
        self.num_updates = num_updates

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, tgt_tokens: Tensor, **kwargs: object
    ) -> dict[str, dict[str, Any]]:
        """Logits, targets, masks and weights of the losses, as fairseq's ``nat_loss`` expects them.

        Args:
            src_tokens: (B, S).
            src_lengths: (B,).
            prev_output_tokens: the target with masks, (B, T).
            tgt_tokens: the target, (B, T).

        Returns:
            ``word_ins`` (masked words, predicted from the given inputs), ``correction`` (replaced words, predicted from
            inputs with guesses; from update ``--self-correction`` on) and ``length``. ``word_ins`` and ``correction``
            have weight ½ each, or 1 if only one of them has words.
        """
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths, **kwargs)
        length_out = self.decoder.forward_length(normalize=False, encoder_out=encoder_out)
        length_tgt = self.decoder.forward_length_prediction(length_out, encoder_out, tgt_tokens)
        glances = self.training and self.args.options.glancing_ratio > 0
        corrects = 0 <= self.correction_starts <= self.num_updates
        if glances or corrects:
            guesses = self._guesses(tgt_tokens, encoder_out)
        if glances:
            prev_output_tokens = self._glanced(tgt_tokens, guesses)
        # Inputs of the decoder, and the mask of the positions to predict.
        passes = {"word_ins": (prev_output_tokens, prev_output_tokens.eq(self.unk))}
        if corrects:
            passes["correction"] = self._with_guesses(prev_output_tokens, tgt_tokens, guesses)
        nonempty = sum(bool(mask.any()) for _, mask in passes.values())
        losses: dict[str, dict[str, Any]] = {
            name: {
                "out": self.decoder(normalize=False, prev_output_tokens=tokens, encoder_out=encoder_out),
                "tgt": tgt_tokens,
                "mask": mask,
                "ls": self.args.label_smoothing,
                "nll_loss": name == "word_ins",  # fairseq would log the sum of both
                "factor": 1 / max(nonempty, 1),
            }
            for name, (tokens, mask) in passes.items()
        }
        losses["length"] = {"out": length_out, "tgt": length_tgt, "factor": self.decoder.length_loss_factor}
        return losses

    @torch.no_grad()
    def _guesses(self, tgt_tokens: Tensor, encoder_out: dict[str, Any]) -> Tensor:
        """Predictions for a fully masked target, (B, T)."""
        return self.predict(tgt_tokens.masked_fill(self.words(tgt_tokens), self.unk), encoder_out)[1]

    def _glanced(self, tgt_tokens: Tensor, guesses: Tensor) -> Tensor:
        """Target (B, T) in which ⌊ratio · number of wrong guesses⌋ random words are revealed and all other words are
        masked (Qian et al. 2021)."""
        words = self.words(tgt_tokens)
        wrong = (words & guesses.ne(tgt_tokens)).sum(dim=1, keepdim=True)
        return tgt_tokens.masked_fill(
            words & ~_random_subset(words, wrong * self.args.options.glancing_ratio), self.unk
        )

    def _with_guesses(self, prev_output_tokens: Tensor, tgt_tokens: Tensor, guesses: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs with a share of the revealed words replaced by guesses, and mask of the replaced words, (B, T)
        each."""
        revealed = self.words(tgt_tokens) & prev_output_tokens.ne(self.unk)
        replaced = _random_subset(revealed, revealed.sum(dim=1, keepdim=True) * self.args.options.replace_factor)
        return torch.where(replaced, guesses, prev_output_tokens), replaced

    def forward_decoder(
        self, decoder_out: DecoderOut, encoder_out: dict[str, Any], decoding_format: None = None, **kwargs: object
    ) -> DecoderOut:
        """Run one iteration of mask-predict: mask the words with the lowest scores, then predict.

        Iteration t of T (from 0) masks ⌊n (1 - t/T)⌋ of n words. CMLMC then replaces prediction and score of every
        word, CMLM (``--self-correction -1``) only of the masked words. The result of an iteration contains no masks.
        """
        tokens, scores, history = decoder_out.output_tokens, decoder_out.output_scores, decoder_out.history
        words = self.words(tokens)
        if decoder_out.step > 0:
            count = self._masked_count(decoder_out, decoder_out.step)
            tokens = tokens.masked_fill(_lowest(scores.float().masked_fill(~words, 2.0), count), self.unk)
            if history is not None:
                history.append(tokens)
        new_scores, new_tokens = self.predict(tokens, encoder_out)
        updated = words if self.correction_starts >= 0 else tokens.eq(self.unk)
        tokens, scores = torch.where(updated, new_tokens, tokens), torch.where(updated, new_scores, scores)
        if history is not None:
            history.append(tokens)
        return decoder_out._replace(output_tokens=tokens, output_scores=scores, attn=None, history=history)

    def converged(self, before: DecoderOut, after: DecoderOut) -> Tensor:
        """See ``ConvergingModel``. A row of CMLM has converged when no later iteration masks a word, a row of CMLMC
        when an iteration without masks did not change it."""
        if self.correction_starts < 0:
            masks = after.output_tokens.eq(self.unk).any(dim=1)  # unknown words look like masks
            return (self._masked_count(after, after.step + 1).squeeze(1) == 0) & ~masks
        unchanged = (before.output_tokens == after.output_tokens).all(dim=1)
        return unchanged & (self._masked_count(after, after.step).squeeze(1) == 0)

    def _masked_count(self, state: DecoderOut, step: int) -> Tensor:
        """Number of words that an iteration masks, (B, 1)."""
        return self.words(state.output_tokens).sum(dim=1, keepdim=True) * (state.max_step - step) // state.max_step

    def initialize_output_tokens(self, encoder_out: dict[str, Any], src_tokens: Tensor) -> DecoderOut:
        """Fully masked target of the most probable length."""
        length_out = self.decoder.forward_length(normalize=True, encoder_out=encoder_out)
        lengths = self.decoder.forward_length_prediction(length_out, encoder_out=encoder_out)
        initial = DecoderOut(output_tokens=None, output_scores=None, attn=None, step=0, max_step=0, history=None)
        return self._fully_masked(lengths, initial, encoder_out["encoder_out"][0].dtype)

    def regenerate_length_beam(self, decoder_out: DecoderOut, beam_size: int) -> DecoderOut:
        """Fully masked targets, ``beam_size`` per sentence, with lengths around the most probable length; at least one
        word, unless the most probable length is 0."""
        best_length = decoder_out.output_tokens.ne(self.pad).sum(1, keepdim=True)
        offsets = torch.arange(beam_size, device=best_length.device) - beam_size // 2
        lengths = torch.where(best_length > 2, (best_length + offsets).clamp(min=3), best_length)
        return self._fully_masked(lengths.view(-1), decoder_out, decoder_out.output_scores.dtype)

    def _fully_masked(self, lengths: Tensor, decoder_out: DecoderOut, dtype: torch.dtype) -> DecoderOut:
        """Rows of start symbol, masks, end symbol, of ``lengths`` tokens, clamped to the decoder's maximum length."""
        lengths = lengths.clamp(min=2, max=self.max_decoder_positions()).unsqueeze(1)
        positions = torch.arange(int(lengths.max()), device=lengths.device)
        tokens = torch.full((len(lengths), len(positions)), self.unk, device=lengths.device)
        tokens[:, 0] = self.bos
        tokens = tokens.masked_fill(positions == lengths - 1, self.eos).masked_fill(positions >= lengths, self.pad)
        return decoder_out._replace(output_tokens=tokens, output_scores=torch.zeros_like(tokens, dtype=dtype))


def _random_subset(mask: Tensor, count: Tensor) -> Tensor:
    """Mask of ⌊count⌋ (B, 1) positions drawn at random from the True positions in each row of a mask (B, T)."""
    order = torch.rand(mask.shape, device=mask.device).masked_fill(~mask, 2.0)
    return _lowest(order, count.long())


def _lowest(scores: Tensor, count: Tensor) -> Tensor:
    """Mask of the ``count`` (B, 1) lowest scores in each row of (B, T); of equal scores the first, independent of T."""
    is_lowest = torch.arange(scores.size(1), device=scores.device) < count
    return is_lowest.scatter(1, scores.argsort(dim=1, stable=True), is_lowest)


def _initialised(module: M, cfg: TransformerConfig) -> M:
    """The module, with BERT's initialisation if ``--apply-bert-init`` is given."""
    if cfg.options.apply_bert_init:
        module.apply(init_bert_params)
    return module


register_sizes("cmlmc_transformer")


def _register_wmt14(name: str, attention: str, **defaults: object) -> None:
    """Register CMLMC at the sizes of WMT14 with another attention in the decoder. The attentions of encoder and RePos
    are softmax, as in the AMLP paper's Table 3, unless ``defaults`` override them."""

    def architecture(args: Namespace) -> None:
        set_defaults(args, decoder_self_attention_type=attention, decoder_cross_attention_type=attention, **defaults)
        wmt_en_de(args)

    register_model_architecture("cmlmc_transformer", f"cmlmc_{name}_wmt_en_de")(architecture)


_register_wmt14("amlp", "amlp_pquery")
_register_wmt14("abc", "abc")
_register_wmt14("local", "local", attention_window=5)
# Linear in both lengths (Section 2.5.2). RePos is ABC in both: AMLP-PQuery has no causal form, and the causal form of
# AMLP-Cov takes d_h² operations and numbers per position.
_register_wmt14("amlp_linear", "amlp_pquery", encoder_self_attention_type="amlp_pquery", repos_attention_type="abc")
_register_wmt14("abc_linear", "abc", encoder_self_attention_type="abc", repos_attention_type="abc")
