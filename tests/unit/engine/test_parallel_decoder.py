"""Decoders that write all words at a time, in the engine with each instruction set of this processor, and PyTorch."""

from __future__ import annotations

import json
import math
import operator
import shutil
import statistics
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import commands
import pytest
import torch
import toy
from safetensors.torch import load_file, save_file

from amlp_fairseq import Translator
from amlp_fairseq.corpora import embedded_corpus
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.engine.model import RefinementOptions
from amlp_fairseq.models.cmlmc import CMLMCTransformerModel
from amlp_fairseq.models.description import describe
from amlp_fairseq.search.iterative_refinement import IterativeRefinement

CMLMC = commands.ROOT / "examples/models/cmlmc"
WORDS = 20
SOURCES = [[0, *source, 2] for source in toy.random_sources(12, WORDS, seed=3, longest=14)]
#: Of their targets, with start and end symbol.
LENGTHS = [2, 3, 4, 5, 6, 7, 9, 11, 13, 8, 16, 40]


def model(seed: int = 0, **options: Any) -> CMLMCTransformerModel:
    """A random model that predicts LENGTHS."""
    result = toy.cmlmc(seed, WORDS, **options)
    del result.decoder.forward_length_prediction  # fairseq's is in the class
    classes = torch.zeros(256, len(SOURCES))
    for i, (source, length) in enumerate(zip(SOURCES, LENGTHS, strict=True)):
        classes[length - len(source) + 128 if options.get("pred_length_offset") else length, i] = 1
    with torch.no_grad():
        rows = [torch.tensor([source]) for source in SOURCES]
        outputs = [result.encoder(row, torch.tensor([row.numel()]))["encoder_out"][0] for row in rows]
        means = torch.stack([output.mean(dim=(0, 1)) for output in outputs], dim=1)
        result.decoder.embed_length.weight.copy_(classes @ torch.linalg.pinv(means))
    return result


def built(library: ModuleType, network: CMLMCTransformerModel, int8: bool = False) -> Any:
    weights = {name: weight.numpy() for name, weight in network.state_dict().items()}
    return library.ParallelEngine(describe(network), weights, int8)


def reference(network: CMLMCTransformerModel, options: RefinementOptions) -> list[dict[str, Any]]:
    """The hypotheses of the generator in PyTorch."""
    words = toy.dictionary(WORDS)
    generator = IterativeRefinement(
        words, max_iter=options.max_iter, beam_size=options.beam, adaptive=options.adaptive, use_engine=False
    )
    batch = toy.batch([source[:-1] for source in SOURCES], words)
    return [found[0] for found in generator.generate([network], batch)]


PLAIN = {"no_repos": True, "no_concatenated_positions": True, "self_correction": -1}
ATTENTIONS = ("encoder_self_attention_type", "decoder_self_attention_type", "decoder_cross_attention_type")
CASES: list[tuple[dict[str, Any], RefinementOptions]] = [
    ({}, RefinementOptions(9, 3)),
    ({}, RefinementOptions(4)),
    (PLAIN, RefinementOptions(9, 4)),
    ({**PLAIN, "share_all_embeddings": True}, RefinementOptions(6, 3, adaptive=False)),
    ({"self_correction": -1, "encoder_normalize_before": True, "decoder_normalize_before": True}, RefinementOptions(3)),
    ({"pred_length_offset": True, "encoder_learned_pos": True, "decoder_learned_pos": True}, RefinementOptions(9, 2)),
    ({"no_concatenated_positions": True, "activation_fn": "gelu"}, RefinementOptions(5, 5, adaptive=False)),
    ({"no_repos": True, "encoder_embed_dim": 24, "encoder_layers": 1}, RefinementOptions(0, 3)),
    ({"max_target_positions": 9, "decoder_attention_heads": 4}, RefinementOptions(4, 6)),
    ({"repos_attention_type": "abc", "decoder_self_attention_type": "abc"}, RefinementOptions(4, 2)),
    (dict.fromkeys(ATTENTIONS, "amlp_pquery"), RefinementOptions(4, 3)),
]


@pytest.mark.parametrize(("changes", "options"), CASES)
def test_the_words_are_those_of_pytorch(
    changes: dict[str, Any], options: RefinementOptions, library: ModuleType
) -> None:
    """Scores are means of log-probabilities up to 20, in float32 (2^-24 each) after layers whose sums have some hundred
    terms."""
    network = model(**changes)
    found = built(library, network).refine(SOURCES, vars(options), 1)
    expected = reference(network, options)
    assert [each.tokens for each in found] == [each["tokens"].tolist() for each in expected]
    assert [each.steps for each in found] == [each["steps"] for each in expected]
    limit = changes.get("max_target_positions", 64)
    if options.beam == 1:
        assert [len(each.tokens) + 1 for each in found] == [min(length, limit) for length in LENGTHS]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(float(other["score"]), abs=20 * 2**-24 * 100)
        torch.testing.assert_close(
            torch.tensor(one.token_scores), other["positional_scores"], atol=20 * 2**-24 * 100, rtol=0
        )


def test_the_cases_have_all_that_may_happen() -> None:
    """Targets without words and unknown words, which look like masks; sentences that end early, and in the last
    iteration."""
    steps, empty, unknown = set(), False, set()
    for changes, options in CASES:
        for each in reference(model(**changes), options):
            steps.add((options.adaptive, each["steps"] < options.max_iter + 1))
            empty |= len(each["tokens"]) == 1
            if 3 in each["tokens"]:
                unknown.add(changes.get("self_correction", 0))
    assert steps == {(True, True), (True, False), (False, False)}
    assert empty
    assert unknown == {0, -1}


@pytest.mark.parametrize("int8", [False, True])
def test_a_sentence_does_not_depend_on_its_batch_or_on_threads(int8: bool, library: ModuleType) -> None:
    """Bit for bit; several threads may call at a time."""
    engine = built(library, model(), int8)

    def refine(sources: list[list[int]], threads: int) -> list[Any]:
        found = engine.refine(sources, vars(RefinementOptions(5, 5)), threads)
        return [(each.tokens, each.token_scores, each.score, each.steps) for each in found]

    expected = [refine([source], 1)[0] for source in SOURCES]
    for threads in (1, 2, 3):
        assert refine(SOURCES * 4, threads) == expected * 4  # more than are read at a time
        assert refine(SOURCES[::-1], threads) == expected[::-1]
    found: list[Any] = []
    workers = [threading.Thread(target=lambda: found.append(refine(SOURCES, 2))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [expected] * 4


def lines(count: int) -> list[str]:
    pairs = embedded_corpus.generate(seed=5, train=0, valid=0, test=count)["test"]
    return [f"{english[0].upper()}{english[1:]}" for english, _ in pairs]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"iter_decode_max_iter": 3, "iter_decode_with_beam": 1},
        {"iter_decode_max_iter": 0, "iter_decode_force_max_iter": True},
    ],
)
def test_a_model_folder_translates_as_in_pytorch(options: dict[str, Any]) -> None:
    texts = ["She falls asleep. He sleeps.", "", "The old doctor sees\na very small car.", "?", *lines(40)]
    found = Translator(CMLMC, backend="engine").translations(texts, **options)
    expected = Translator(CMLMC, backend="pytorch").translations(texts, **options)
    for one, other in zip(found, expected, strict=True):
        assert (one.text, one.calls, one.pieces) == (other.text, other.calls, other.pieces)
        assert one.score == pytest.approx(other.score, abs=20 * 2**-24 * 100)  # as above


def test_int8_is_as_near_to_float32_as_in_pytorch() -> None:
    """The inputs of products may have half as many steps as PyTorch's, where AMLP_FAIRSEQ_ISA has no VNNI."""
    texts, options = lines(40), {"iter_decode_max_iter": 0, "iter_decode_with_beam": 1}
    found: dict[tuple[str, str], list[float]] = {}
    for backend in ("engine", "pytorch"):
        for dtype in ("float32", "int8"):
            translator = Translator(CMLMC, backend=backend, decode_dtype=dtype, **options)  # type: ignore[arg-type]
            found[backend, dtype] = [each.score for each in translator.translations(texts)]
    engine, pytorch = (
        statistics.mean(map(abs, map(operator.sub, found[backend, "float32"], found[backend, "int8"])))
        for backend in ("engine", "pytorch")
    )
    assert 0 < engine < 3 * pytorch


def test_pytorch_takes_what_the_engine_lacks() -> None:
    translator = Translator(CMLMC, backend="engine")
    assert translator._pytorch is None
    for option, flag in (
        ({"rescore_path": str(CMLMC.parent / "ar")}, "--rescore-path .*ar"),
        ({"decode_dtype": "float16"}, "--decode-dtype float16"),
        ({"iter_decode_with_beam": 10**6}, "--iter-decode-with-beam 1000000"),
    ):
        with pytest.raises(ValueError, match=f"^backend='engine': the engine does not have {flag}$"):
            Translator(CMLMC, backend="engine", **option)  # type: ignore[arg-type]
    for wrong, flag in (({"iter_decode_max_iter": -1}, "--iter-decode-max-iter -1"), ({"beam": 4}, "--beam 4")):
        with pytest.raises(ValueError, match=flag):
            translator.translate(["She falls asleep."], **wrong)  # type: ignore[arg-type]


def test_a_line_needs_no_pytorch() -> None:
    program = (
        "import sys; sys.argv = ['amlp-fairseq', 'translate', '--model', sys.argv[1], '--iter-decode-with-beam', '2']\n"
        "from amlp_fairseq.cli.main import main; main()\n"
        "assert not {'torch', 'fairseq', 'omegaconf'} & sys.modules.keys()"
    )
    done = commands.fresh(sys.executable, "-c", program, str(CMLMC), input="She falls asleep.\n")
    assert done.stdout == "Sie schläft ein.\n"


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    """One line, as for other models."""
    shutil.copytree(CMLMC, folder := tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["decoder.layer_norm.weight"][:] = math.nan
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["checksums"]["model.safetensors"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="finite"):
        Translator(folder, backend="engine").translate(["She falls asleep."])


def test_weights_of_another_size_or_missing(library: ModuleType) -> None:
    network = model()
    weights = {name: weight.numpy() for name, weight in network.state_dict().items()}
    description = describe(network)
    for name in weights:
        if name.endswith(("version", "_float_tensor")):
            continue
        for other in (weights[name][:-1], weights[name].repeat(2, axis=0)):
            with pytest.raises(ValueError, match=r"another size"):
                library.ParallelEngine(description, {**weights, name: other}, False)
        if name.endswith(".bias") and "norm" not in name:
            continue  # maps may do without
        without = {other: weight for other, weight in weights.items() if other != name}
        with pytest.raises(ValueError, match=r"the model has no weights named"):
            library.ParallelEngine(description, without, False)
    for changes in ({"bos": WORDS + 4}, {"unk": -1}):
        with pytest.raises(ValueError, match=r"no such token|unk has a wrong value"):
            library.ParallelEngine({**description, **changes}, weights, False)


@pytest.mark.parametrize(
    "options", [{"repos_attention_type": "amlp_cov"}, {"decoder_cross_attention_type": "performer"}]
)
def test_what_the_engine_does_not_have(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        describe(model(**options))
