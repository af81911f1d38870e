"""Base class of the plugin's non-autoregressive models."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import torch
from fairseq.models.transformer import TransformerModel
from fairseq.tasks import FairseqTask
from torch import Tensor

from amlp_fairseq.compat.internals import FairseqConfig, TranslationLevenshteinTask, gen_parser_from_dataclass
from amlp_fairseq.compat.tasks import guard
from amlp_fairseq.models.plugin_transformer import (
    ModelConfig,
    PluginTransformerConfig,
    to_bfloat16,
    transformer_config,
)
from amlp_fairseq.ops.top_k import top_k


class NATModel(TransformerModel):
    """Mixin for fairseq's NAT classes; the first base class of a model.

    Attributes:
        NAME: name of the model.
        CONFIG: dataclass of the model's options.
        pad: index of the padding symbol.
        bos: index of the start symbol.
        eos: index of the end symbol.
    """

    NAME: str
    CONFIG: type[PluginTransformerConfig]
    pad: int
    bos: int
    eos: int

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:  # type: ignore[override]
        gen_parser_from_dataclass(parser, cls.CONFIG(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: ModelConfig, task: FairseqTask) -> NATModel:
        """Build the model from a flat configuration.

        Raises:
            ValueError: for a task other than ``translation_cmlmc``.
        """
        if not isinstance(task, TranslationLevenshteinTask):
            raise ValueError(f"a {cls.NAME} needs --task translation_cmlmc (fairseq's default is translation)")
        guard(task)
        # Skips TransformerModel.build_model, which expects all options of fairseq's model.
        config = transformer_config(cfg, cls.CONFIG)
        return super(TransformerModel, cls).build_model(config, task)

    def prepare_for_inference_(self, cfg: FairseqConfig) -> None:
        to_bfloat16(self, cfg)
        super().prepare_for_inference_(cfg)

    def words(self, tokens: Tensor) -> Tensor:
        """Mask of the positions whose token is not start, end or padding, in the shape of ``tokens``."""
        return tokens.ne(self.pad) & tokens.ne(self.bos) & tokens.ne(self.eos)

    def predict(self, tokens: Tensor, encoder_out: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Best word at each position of the decoder's inputs (B, T), without start, end and padding.

        Returns:
            Log-probabilities (B, T), and indices of the words (B, T).
        """
        scores = self.decoder(normalize=True, prev_output_tokens=tokens, encoder_out=encoder_out)
        for symbol in (self.pad, self.bos, self.eos):
            scores[..., symbol] = -torch.inf
        log_probs, words = top_k(scores, 1)
        return log_probs.squeeze(-1), words.squeeze(-1)
