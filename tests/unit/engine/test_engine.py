"""The engine, with each instruction set of this processor, beside the search in PyTorch and NumPy."""

from __future__ import annotations

import json
import logging
import runpy
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import commands
import numpy as np
import pytest
import torch
import toy
from fairseq import utils
from fairseq.data import Dictionary as FairseqDictionary
from safetensors.torch import save_file

from amlp_fairseq import Translator
from amlp_fairseq.engine import isa
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.engine.model import SearchOptions
from amlp_fairseq.engine.safetensors import Tensors
from amlp_fairseq.models.description import describe
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions as PyTorchOptions
from amlp_fairseq.text.dictionary import Dictionary

MODELS = commands.ROOT / "examples/models"
WORDS = 24
SOURCES = [[4, 9, 7, 5, 20, 11, 2], [6, 2], [21, 8, 8, 13, 2], [10, 15, 16, 17, 18, 19, 22, 23, 4, 2]]


def test_the_fastest_library_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isa.library().__name__.endswith(f"._{isa.supported()[0]}")
    monkeypatch.setenv(isa.FORCED, "generic")
    assert isa.library().__name__.endswith("._generic")
    monkeypatch.setenv(isa.FORCED, "avx1024")
    for load in (isa.library, lambda: Translator(MODELS / "ar")):
        with pytest.raises(ValueError, match=r"^AMLP_FAIRSEQ_ISA=avx1024: this processor has .*generic"):
            load()


def test_a_backend_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(isa.BACKEND, "bogus")
    with pytest.raises(ValueError, match=r"AMLP_FAIRSEQ_BACKEND=bogus.*torch"):
        Translator(MODELS / "ar")


def test_a_library_of_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is refused, with what to run, and not taken for a damaged folder or left out; wheels have no sources."""
    name = isa.library_isa()
    monkeypatch.setattr(isa, "sources", lambda: 7)
    isa.load.cache_clear()
    with pytest.raises(ValueError, match=rf"^\S*_{name}\.\S* is of other sources .* build_ext --inplace --force$"):
        Translator(MODELS / "ar")
    monkeypatch.setattr(isa, "sources", lambda: 0)
    assert isa.library_isa() == name


def test_another_header_is_another_source(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    shutil.copy(isa.__file__, tmp_path)
    header = tmp_path / "src/x.h"

    def sources() -> int:
        number: int = runpy.run_path(str(tmp_path / "isa.py"))["sources"]()
        return number

    assert sources() == 0
    header.write_text("1\n", encoding="utf-8")
    first = sources()
    header.write_text("2\n", encoding="utf-8")
    assert first != sources() != 0


def built(library: ModuleType, model: Any, int8: bool = False) -> Any:
    """The engine of a toy model."""
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    return library.Engine(describe(model), weights, int8)


def settings(**changes: Any) -> dict[str, Any]:
    return {**vars(SearchOptions()), "beam": 4, "max_len_b": 12, **changes}


def reference(model: Any, task: Any, options: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The hypotheses of the search in PyTorch, with a model or a list of models."""
    models = model if isinstance(model, list) else [model]
    search = PyTorchOptions(
        beam_size=options["beam"],
        max_len_a=options["max_len_a"],
        max_len_b=options["max_len_b"],
        min_len=options["min_len"],
        normalize_scores=options["normalize"],
        len_penalty=options["length_penalty"],
        length_penalty_kind="gnmt" if options["gnmt"] else "fairseq",
        unk_penalty=options["unk_penalty"],
        temperature=options["temperature"],
        words_after_end="count" if options["count_after_end"] else "ignore",
        finished="all" if options["keep_all"] else "best",
        no_repeat_ngram_size=options["no_repeat_ngram"],
        repetition_penalty=options["repetition_penalty"],
        alignment="hard" if options["align"] else None,
    )
    length = max(map(len, SOURCES))
    rows = [[task.tgt_dict.pad()] * (length - len(source)) + source for source in SOURCES]
    net_input = {"src_tokens": torch.tensor(rows), "src_lengths": torch.tensor(list(map(len, SOURCES)))}
    return MultiwordBeamSearch(models, task.tgt_dict, task.order, search, use_engine=False).generate(
        models, {"net_input": net_input}
    )


def near(found: list[list[Any]], expected: list[list[dict[str, Any]]]) -> None:
    """The same hypotheses: sums of at most 13 log-probabilities up to 20, in float32 (2^-24 each) after layers whose
    sums have some hundred terms. Those whose scores are as near as that may change places."""
    tolerance = 13 * 20 * 2**-24 * 100
    for hypotheses, others in zip(found, expected, strict=True):
        assert len(hypotheses) == len(others)
        for rank, (one, other) in enumerate(zip(hypotheses, others, strict=True)):
            score = float(other["score"])
            assert one.score == pytest.approx(score, abs=tolerance)
            gaps = [abs(float(each["score"]) - score) for index, each in enumerate(others) if index != rank]
            if min(gaps, default=1.0) < 2 * tolerance:
                continue
            assert one.steps == other["steps"]
            assert one.tokens == other["tokens"].tolist()
            torch.testing.assert_close(
                torch.tensor(one.token_scores), other["positional_scores"], atol=tolerance, rtol=0
            )


CASES: list[tuple[tuple[int, int, bool], dict[str, Any], dict[str, Any]]] = [
    ((1, 1, False), {}, {}),
    ((1, 1, False), {"decoder_normalize_before": True, "encoder_normalize_before": True}, {"beam": 1}),
    ((2, 1, False), {"encoder_learned_pos": True}, {"gnmt": True, "length_penalty": 0.6}),
    ((2, 2, True), {}, {"beam": 1}),
    ((2, 1, True), {"layernorm_embedding": True}, {"count_after_end": True, "keep_all": True}),
    ((2, 2, False), {"activation_fn": "gelu"}, {"min_len": 4, "unk_penalty": 0.5}),
    (
        (4, 1, False),
        {"no_scale_embedding": True, "activation_fn": "gelu_accurate"},
        {"temperature": 1.3, "max_len_b": 5},
    ),
    ((2, 0, False), {"encoder_embed_dim": 24, "encoder_ffn_embed_dim": 40}, {"normalize": False}),
    ((4, 2, True), {"share_decoder_input_output_embed": True}, {"length_penalty": -0.5, "beam": 3}),
    ((2, 1, False), {"decoder_attention_heads": 4, "encoder_layers": 1, "decoder_layers": 3}, {"max_len_a": 0.7}),
]


@pytest.mark.parametrize(("order", "model", "options"), CASES)
def test_the_hypotheses_are_those_of_the_search_in_pytorch(
    order: tuple[int, int, bool], model: dict[str, Any], options: dict[str, Any], library: ModuleType
) -> None:
    directions, words, middle = order
    task = toy.task(WORDS, num_directions=directions, words_per_direction=words, middle_to_side=middle)
    network = toy.model(task, seed=sum(order), **model)
    chosen = settings(**options)
    found = built(library, network).search(SOURCES, chosen, 1)
    near(found, reference(network, task, chosen))


@pytest.mark.parametrize("activation", utils.get_available_activation_fns())
def test_every_activation_that_fairseq_has(activation: str) -> None:
    task = toy.task(WORDS)
    network = toy.model(task, activation_fn=activation)
    near(built(isa.library(), network).search(SOURCES, settings(), 1), reference(network, task, settings()))


@pytest.mark.parametrize("int8", [False, True])
def test_a_sentence_does_not_depend_on_its_batch_or_on_threads(int8: bool, library: ModuleType) -> None:
    """Bit for bit; several threads may search at a time."""
    task = toy.task(WORDS, num_directions=2, words_per_direction=1)
    engine = built(library, toy.model(task, encoder_embed_dim=64, decoder_embed_dim=64), int8)

    def search(sources: list[list[int]], threads: int) -> list[Any]:
        return [
            [(each.tokens, each.token_scores, each.score) for each in hypotheses]
            for hypotheses in engine.search(sources, settings(), threads)
        ]

    expected = [search([source], 1)[0] for source in SOURCES]
    for threads in (1, 2, 3):
        assert search(SOURCES, threads) == expected
        assert search(SOURCES[::-1], threads) == expected[::-1]
    found: list[Any] = []
    workers = [threading.Thread(target=lambda: found.append(search(SOURCES, 2))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [expected] * 4


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 5, 3), (7, 64, 70), (50, 33, 129), (75, 150, 200)])
def test_int8_products(rows: int, inputs: int, outputs: int, nonnegative: bool, library: ModuleType) -> None:
    """Inputs are rounded to steps of the row's largest magnitude, sums are exact, and three roundings follow."""
    random = np.random.default_rng(rows)
    weight = random.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    scales, bias = (random.random(outputs).astype(np.float32) for _ in range(2))
    x = random.standard_normal((rows, inputs)).astype(np.float32)
    x = np.abs(x) if nonnegative else x
    x[0] = 0
    largest = np.abs(x).max(axis=1, keepdims=True)
    steps = np.float32(library.INT8_INPUT_STEPS - (0 if nonnegative else library.INT8_INPUT_STEPS // 2 + 1))
    factor = np.divide(np.float32(1), largest, out=np.zeros_like(largest), where=largest > 0)
    units = np.rint(x * factor * steps).astype(np.int64)
    exact = (units @ weight.T.astype(np.int64)) * (scales.astype(np.float64) / steps) * largest + bias
    linear = library.int8_linear(weight, scales, bias, nonnegative)
    for relu in (False, True):
        found = linear.product(x, relu)
        wanted = np.maximum(exact, 0) if relu else exact
        np.testing.assert_allclose(found, wanted, rtol=4 * 2**-24, atol=4 * 2**-24 * np.abs(exact).max())


@pytest.mark.parametrize("name", ["ar", "ibdecoder", "ibdecoder_sa"])
def test_a_model_folder_translates_as_in_pytorch(name: str) -> None:
    texts = [
        "She falls asleep. He sleeps.",
        "",
        "The old doctor sees\na very small car.",
        "?",
        "He says that he reads.",
    ]
    options: list[dict[str, Any]] = [{}, {"beam": 1}, {"nbest": 3, "beam": 5, "lenpen": 1.2}, {"max_len_b": 3}]
    engine, pytorch = Translator(MODELS / name, backend="engine"), Translator(MODELS / name, backend="pytorch")
    for given in options:
        found, expected = engine.translations(texts, **given), pytorch.translations(texts, **given)
        for one, other in zip(found, expected, strict=True):
            assert (one.text, one.calls, one.pieces) == (other.text, other.calls, other.pieces)
            assert [text for text, _ in one.alternatives] == [text for text, _ in other.alternatives]
            # sums of 34 log-probabilities of at most 10, after layers whose sums have some hundred terms
            assert one.score == pytest.approx(other.score, abs=34 * 10 * 2**-24 * 100)


def test_pytorch_takes_what_the_engine_lacks(caplog: pytest.LogCaptureFixture) -> None:
    """And the log says why, once until it changes."""
    caplog.set_level(logging.INFO, "amlp_fairseq.translator")
    translator = Translator(MODELS / "ar")
    assert (translator.why_pytorch, translator._pytorch) == ("", None)
    translator.translations(["She falls asleep."])
    translator.translations(["She falls asleep."], beam=2)
    assert translator.translate(["She falls asleep."], beam=4, diverse_beam_groups=2) == ["Sie schläft ein."]
    assert translator._pytorch is not None
    assert Translator(MODELS / "ar", backend="pytorch").why_pytorch == "backend='pytorch'"
    first, second, *_ = [record.message for record in caplog.records]
    assert first.startswith(f"{MODELS / 'ar'}: the engine decodes (")
    assert second == f"{MODELS / 'ar'}: PyTorch decodes: the engine does not have --diverse-beam-groups 2"
    with pytest.raises(ValueError, match=r"^backend='engine': the engine does not have --diverse-beam-groups 2"):
        Translator(MODELS / "ar", backend="engine", diverse_beam_groups=2)


def test_a_line_needs_no_pytorch(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['amlp-fairseq', 'translate', '--model', *sys.argv[1:], '--beam', '2', '--verbose']\n"
        "from amlp_fairseq.cli.main import main; main()\n"
        "assert not {'torch', 'fairseq', 'omegaconf', 'subword_nmt', 'tqdm'} & sys.modules.keys()"
    )
    models = str(MODELS / "ibdecoder"), "--rescore-path", str(MODELS / "ar"), "--jsonl", "--print-alignment"
    done = commands.fresh(sys.executable, "-c", program, *models, input="She falls asleep.\n")
    log, line = done.stdout.splitlines()
    translation = json.loads(line)
    assert translation["text"] == "Sie schläft ein."
    assert len(translation["alignment"]) == len(translation["pieces"])
    assert log.startswith(f"{MODELS / 'ibdecoder'}: the engine decodes (")


def test_weights_are_those_of_the_file(tmp_path: Path) -> None:
    tensors = {
        "float32": torch.randn(3, 5),
        "bfloat16": torch.randn(7).bfloat16(),
        "float16": torch.randn(2, 2).half(),
        "int8": torch.arange(-3, 3, dtype=torch.int8),
        "empty": torch.empty(0, 4),
    }
    save_file(tensors, tmp_path / "x")
    found = Tensors(tmp_path / "x")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].tolist() == tensor.tolist()


HEADERS: list[bytes] = [
    b"",
    b"\x01",
    b"\xff" * 8,
    b"\x02\0\0\0\0\0\0\0[]",
    *(
        len(header).to_bytes(8, "little") + header
        for header in (
            b"{",
            b'{"x": 1}',
            b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
            b'{"x": {"dtype": "F99", "shape": [], "data_offsets": [0, 0]}}',
            b'{"x": {"dtype": "F32", "shape": [-1], "data_offsets": [8, 0]}}',
            b'{"x": {"dtype": "F32", "shape": [9], "data_offsets": [0, 0]}}',
        )
    ),
]


@pytest.mark.parametrize("content", HEADERS)
def test_damaged_weights(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=f"^{tmp_path / 'x'} is damaged: "):
        Tensors(tmp_path / "x")


def test_weights_of_another_size_or_missing(library: ModuleType) -> None:
    task = toy.task(WORDS, num_directions=2, words_per_direction=1)
    model = toy.model(task)
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    description = describe(model)
    for name in weights:
        if name.endswith(("version", "interleaving", "_float_tensor")):
            continue
        with pytest.raises(ValueError, match=r"another size"):
            library.Engine(description, {**weights, name: weights[name][:-1]}, False)
        if name.endswith(".bias") and "norm" not in name:
            continue  # maps may do without
        with pytest.raises(ValueError, match=r"the model has no weights named"):
            library.Engine(description, {other: weight for other, weight in weights.items() if other != name}, False)


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_self_attention_type": "concat"},
        {"decoder_cross_attention_type": "performer"},
        {"decoder_attention_mask": "vanilla"},
        {"activation_fn": "relu_squared"},
        {"decoder_output_dim": 24},
    ],
)
def test_what_the_engine_does_not_have(options: dict[str, Any]) -> None:
    task = toy.task(WORDS, num_directions=2, words_per_direction=1)
    describe(toy.model(task))
    with pytest.raises(UnsupportedError):
        describe(toy.model(task, **options))


def test_a_folder_without_a_description(tmp_path: Path) -> None:
    """Of an older version; PyTorch decodes it, and `package` makes one anew."""
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(MODELS / "ibdecoder", old)
    config = json.loads((old / "config.json").read_text(encoding="utf-8"))
    expected = config.pop("description")
    (old / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=r"made by another version .*amlp-fairseq package"):
        Translator(old, backend="engine")
    assert Translator(old).translate(["She falls asleep."]) == ["Sie schläft ein."]
    commands.run("amlp_fairseq.cli.package", old, "--out", new)
    assert json.loads((new / "config.json").read_text(encoding="utf-8"))["description"] == expected


def test_dictionaries_are_fairseqs(tmp_path: Path) -> None:
    path = tmp_path / "dict.txt"
    path.write_text("the 10\n▁a 9\n<unk> 3 #fairseq:overwrite\nx y 2\n", encoding="utf-8")
    own, fairseqs = Dictionary(path), FairseqDictionary.load(str(path))
    assert own.symbols == fairseqs.symbols
    text = "the <unk> ▁a nothing"
    tokens = own.encode(text)
    assert tokens == [*(fairseqs.index(piece) for piece in text.split()), fairseqs.eos()]
    assert own.decode(tokens) == fairseqs.string(torch.tensor(tokens))
    for content in ("the 1\nthe 2\n", "the\n", "the x\n"):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=f"^{path} is not a dictionary: line "):
            Dictionary(path)
