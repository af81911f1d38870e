"""Small random models and tasks, built in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary, indexed_dataset
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.sequence_scorer import SequenceScorer

from amlp_fairseq.engine.isa import fastest
from amlp_fairseq.models.cmlmc import CMLMCConfig, CMLMCTransformerModel
from amlp_fairseq.models.interleaved_decoder import IBDecoderConfig, IBDecoderModel
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask

SIZES = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"embed_dim": 16, "ffn_embed_dim": 32, "layers": 2, "attention_heads": 2}.items()
}

#: Whether the inputs of int8 maps have 255 steps on this processor; otherwise they have 127, and errors are twice as
#: large.
VNNI = fastest().INT8_INPUT_STEPS == 255


def dictionary(words: int) -> Dictionary:
    """A dictionary of ``words`` words w0, w1, … and the four special symbols."""
    result = Dictionary()
    for i in range(words):
        result.add_symbol(f"w{i}")
    return result


def binarise(prefix: Path, sentences: Sequence[Sequence[int]], impl: str = "mmap", entries: int = 100) -> None:
    """Sentences as fairseq-preprocess writes them for a dictionary of so many entries, to be read as ``impl``."""
    builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap" if impl == "mmap" else "cached", vocab_size=entries)
    for sentence in sentences:
        builder.add_item(torch.as_tensor(sentence))
    builder.finalize(f"{prefix}.idx")


def task(words: int = 12, **options: Any) -> TranslationInterleavedTask:
    """An interleaved task without data."""
    cfg = TranslationInterleavedConfig(**options)
    return TranslationInterleavedTask(cfg, dictionary(words), dictionary(words))


def model(toy_task: Any, seed: int = 0, sharpness: float = 3.0, **options: Any) -> IBDecoderModel:
    """A random ibdecoder in eval mode; ``sharpness`` scales the output so that words differ in probability."""
    torch.manual_seed(seed)
    values = {"max_source_positions": 64, "max_target_positions": 64, **SIZES, **options}
    cfg = IBDecoderConfig(**values)
    result = IBDecoderModel.build_model(cfg, toy_task)
    return sharpen(result, sharpness)


def stock_transformer(toy_task: Any, seed: int = 0, sharpness: float = 3.0) -> TransformerModelBase:
    """A random stock Transformer in eval mode."""
    torch.manual_seed(seed)
    cfg = TransformerConfig.from_namespace(
        SimpleNamespace(
            max_source_positions=64, max_target_positions=64, decoder_input_dim=16, decoder_output_dim=16, **SIZES
        )
    )
    return sharpen(TransformerModelBase.build_model(cfg, toy_task), sharpness)


def left_to_right(toy_task: Any, model: Any, config: type, seed: int = 1, **options: Any) -> Any:
    """A random autoregressive model of the plugin in eval mode."""
    torch.manual_seed(seed)
    cfg = config(max_source_positions=64, max_target_positions=64, **SIZES, **options)
    return sharpen(model.build_model(cfg, toy_task), 3.0)


def cmlmc(seed: int = 1, words: int = 12, **options: Any) -> CMLMCTransformerModel:
    """A random CMLMC model whose sentences have 3, 4, 5, … words."""
    torch.manual_seed(seed)
    known = dictionary(words)
    values = {"max_source_positions": 64, "max_target_positions": 64, **SIZES, "label_smoothing": 0.1, **options}
    cfg = CMLMCConfig(**values)
    result = CMLMCTransformerModel.build_model(cfg, TranslationCMLMCTask(TranslationCMLMCConfig(), known, known))
    result.decoder.forward_length_prediction = lambda length_out, encoder_out: torch.arange(len(length_out)) + 5
    return sharpen(result, 3.0)


def sharpen(result: Any, sharpness: float) -> Any:
    with torch.no_grad():
        result.decoder.output_projection.weight *= sharpness
    return result.eval()


def batch(sources: list[list[int]], d: Dictionary, left_pad: bool = True) -> dict[str, Any]:
    """A batch of sources (word ids, without the end symbol)."""
    rows = [torch.tensor([*words, d.eos()]) for words in sources]
    width = max(len(row) for row in rows)
    tokens = torch.full((len(rows), width), d.pad())
    for i, row in enumerate(rows):
        start = width - len(row) if left_pad else 0
        tokens[i, start : start + len(row)] = row
    return {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([len(row) for row in rows])}}


def scored_by_fairseq(
    d: Dictionary, model: Any, sources: Sequence[list[int]], hypotheses: Sequence[list[int]]
) -> list[dict[str, Any]]:
    """fairseq's scores of hypotheses without end symbols, one for each source."""
    width = max(len(words) for words in hypotheses) + 1
    rows = [[*words, d.eos(), *[d.pad()] * (width - len(words) - 1)] for words in hypotheses]
    inputs = [[d.eos(), *words, *[d.pad()] * (width - len(words) - 1)] for words in hypotheses]
    sample = batch([*sources], d)
    sample["net_input"]["prev_output_tokens"] = torch.tensor(inputs)
    sample["target"] = torch.tensor(rows)
    return [found[0] for found in SequenceScorer(d).generate([model], sample)]


def random_sources(count: int, words: int, seed: int = 0, longest: int = 9) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(4, 4 + words, (n,), generator=generator).tolist() for n in lengths]


def frame_features(model: Any, encoder_out: Any, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the decoder of a model that speaks makes of frames (B, T, C) one by one, and of the whole."""
    lengths = torch.full((frames.size(0),), frames.size(1))
    whole = model.decoder(frames, encoder_out, target_lengths=lengths)[2]["feature_out"]
    state: dict[str, Any] = {}
    steps = [
        model.decoder(
            frames[:, t : t + 1], encoder_out, incremental_state=state, target_lengths=torch.full_like(lengths, t + 1)
        )[2]["feature_out"]
        for t in range(frames.size(1))
    ]
    return torch.cat(steps, dim=1), whole
