"""What the plugin's non-autoregressive models have in common."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import torch
from fairseq.models.transformer import TransformerModel
from torch import Tensor

from amlp_fairseq.compat.internals import TranslationLevenshteinTask, gen_parser_from_dataclass
from amlp_fairseq.compat.tasks import guard
from amlp_fairseq.models.plugin_transformer import PluginTransformerConfig, to_bfloat16, transformer_config
from amlp_fairseq.ops.top_k import top_k


class NATModel(TransformerModel):
    """To stand in front of one of fairseq's NAT classes.

    Attributes:
        NAME: of the model.
        CONFIG: its options.
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
    def build_model(cls, cfg: Any, task: Any) -> Any:
        """
        Raises:
            ValueError: for another task than ``translation_cmlmc``.
        """
        if not isinstance(task, TranslationLevenshteinTask):
            raise ValueError(f"a {cls.NAME} needs --task translation_cmlmc (fairseq's default is translation)")
        guard(task)
        # Not through TransformerModel, which expects all of fairseq's own options.
        config = transformer_config(cfg, cls.CONFIG)
        return super(TransformerModel, cls).build_model(config, task)

    def prepare_for_inference_(self, cfg: Any) -> None:
        to_bfloat16(self, cfg)
        super().prepare_for_inference_(cfg)

    def words(self, tokens: Tensor) -> Tensor:
        """Mask of the positions that hold neither start, end nor padding."""
        return tokens.ne(self.pad) & tokens.ne(self.bos) & tokens.ne(self.eos)

    def predict(self, tokens: Tensor, encoder_out: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The log-probability of the best word at each position of the decoder's inputs (B, T), and the word, never
        start, end or padding."""
        scores = self.decoder(normalize=True, prev_output_tokens=tokens, encoder_out=encoder_out)
        for symbol in (self.pad, self.bos, self.eos):
            scores[..., symbol] = -torch.inf
        best, words = top_k(scores, 1)
        return best.squeeze(-1), words.squeeze(-1)
