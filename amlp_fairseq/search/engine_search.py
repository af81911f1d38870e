"""The multi-word beam search in the C++ engine, for fairseq's commands on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fairseq.models import FairseqEncoderDecoderModel

from amlp_fairseq.decoding.step_decoder import drops_out
from amlp_fairseq.engine import model as engine
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.models.description import describe
from amlp_fairseq.search.options import SearchOptions

#: Options that the engine has under the same names.
SAME = ("max_len_a", "max_len_b", "min_len", "unk_penalty", "temperature")


def check_supported(models: Sequence[FairseqEncoderDecoderModel], options: SearchOptions) -> None:
    """Raise UnsupportedError, naming it, for what the engine does not have."""
    if len(models) > 1:
        raise UnsupportedError("several models")
    (model,) = models
    parameter = next(model.parameters())
    if parameter.device.type != "cpu":
        raise UnsupportedError(f"the device {parameter.device}")
    for option, is_given in (
        ("--retain-dropout", drops_out(model)),
        ("--cuda-graphs", options.cuda_graphs),
        ("--print-alignment", options.alignment is not None),
        (f"weights in {parameter.dtype}", parameter.dtype != torch.float32),
    ):
        if is_given:
            raise UnsupportedError(option)


def engine_model(model: FairseqEncoderDecoderModel, decode_dtype: str | None, max_positions: int) -> engine.Model:
    """A model in the engine, with copies of its weights.

    Args:
        model: it is not changed.
        decode_dtype: one of ``engine.DECODE_DTYPES``; None: float32.
        max_positions: of the decoder.

    Raises:
        UnsupportedError: for a model or a type that the engine does not have.
        ImportError: if the engine has not been compiled, or is turned off.
    """
    weights = {name: weight.detach().numpy() for name, weight in model.state_dict().items()}
    description = describe(model)
    description["decoder"]["max_positions"] = max_positions
    return engine.Model(description, weights, decode_dtype or "float32")


def search(
    model: engine.Model,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    propose: engine.Propose | None = None,
    draft_words: int = 0,
) -> list[list[dict[str, Any]]]:
    """The hypotheses of sources, as ``MultiwordBeamSearch.generate`` returns them.

    Args:
        model: the model.
        sources: with the end symbol, without padding.
        options: which ``check_supported`` accepts.
        propose: see ``engine.Model.search``.
        draft_words: see there.
    """
    settings = engine.SearchOptions(
        beam=options.beam_size,
        normalize=options.normalize_scores,
        length_penalty=options.len_penalty,
        gnmt=options.length_penalty_kind == "gnmt",
        count_after_end=options.words_after_end == "count",
        keep_all=options.finished == "all",
        no_repeat_ngram=max(options.no_repeat_ngram_size, 0),
        deduplicate=max(options.deduplicate_ngram_size, 0),
        **{name: getattr(options, name) for name in SAME},
    )
    found = model.search(sources, settings, torch.get_num_threads(), propose, draft_words)
    return [[_hypothesis(each) for each in hypotheses] for hypotheses in found]


def _hypothesis(found: engine.Hypothesis) -> dict[str, Any]:
    return {
        "tokens": torch.tensor([*found.tokens, engine.EOS]),
        "score": torch.tensor(found.score),
        "positional_scores": torch.tensor(found.token_scores),
        "attention": None,
        "alignment": torch.empty(0),
        "steps": found.steps,
    }
