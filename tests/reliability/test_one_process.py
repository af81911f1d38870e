"""Several things in one process: threads, tasks, trainings between translations, copies, and fairseq's own tasks."""

from __future__ import annotations

import copy
import json
import pickle
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
import toy
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.nat_loss import LabelSmoothedDualImitationCriterion
from fairseq.data import LanguagePairDataset, ListDataset
from small_systems import SYSTEMS, TINY, System

from amlp_fairseq.compat import literal_options
from amlp_fairseq.data.interleaved_pair_dataset import InterleavedPairDataset
from amlp_fairseq.data.start_symbol_pair_dataset import StartSymbolPairDataset
from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask

Decode = Callable[[Any, int], list[list[int]]]


def interleaved(decode_dtype: str | None = None, **order: Any) -> tuple[Any, Callable[[], Decode]]:
    """A model, and what makes a generator for it: a function of the model and a batch's number."""
    task = toy.task(**order)

    def generator() -> Decode:
        options = SearchOptions(beam_size=3, max_len_b=12, decode_dtype=decode_dtype)
        made: list[MultiwordBeamSearch] = []

        def decode(model: Any, number: int) -> list[list[int]]:
            if not made:
                made.append(MultiwordBeamSearch([model], task.target_dictionary, task.order, options))
            batch = toy.batch(toy.random_sources(5, 12, number), task.source_dictionary)
            return [found[0]["tokens"].tolist() for found in made[0].generate([], batch)]

        return decode

    return toy.model(task, dropout=0.1), generator


def refined(decode_dtype: str | None = None) -> tuple[Any, Callable[[], Decode]]:
    """The same with a CMLMC model."""
    words = toy.dictionary(12)

    def generator() -> Decode:
        search = IterativeRefinement(words, max_iter=4, beam_size=2, decode_dtype=decode_dtype, use_engine=False)

        def decode(model: Any, number: int) -> list[list[int]]:
            sources = [[words.bos(), *source] for source in toy.random_sources(5, 12, number)]
            return [found[0]["tokens"].tolist() for found in search.generate([model], toy.batch(sources, words))]

        return decode

    model = toy.cmlmc(dropout=0.1)
    model.decoder.forward_length_prediction = lengths  # that of toy.py could not be pickled
    return model, generator


def lengths(length_out: torch.Tensor, encoder_out: Any, target: torch.Tensor | None = None) -> torch.Tensor:
    """In place of a model's prediction."""
    return torch.arange(len(length_out)) + 5 if target is None else target.ne(1).sum(1)


KINDS: dict[str, Callable[[], tuple[Any, Callable[[], Decode]]]] = {
    "interleaved": lambda: interleaved(num_directions=2),
    "interleaved int8": lambda: interleaved("int8", num_directions=2),
    "left to right": lambda: interleaved(num_directions=1),
    "middle to side": lambda: interleaved(num_directions=2, words_per_direction=2, middle_to_side=True),
    "refined": refined,
    "refined int8": lambda: refined("int8"),
}


@pytest.mark.parametrize("final", [False, True], ids=["in training", "final"])
@pytest.mark.parametrize("kind", ["interleaved", "interleaved int8", "refined", "refined int8"])
def test_threads_share_a_model(kind: str, final: bool) -> None:
    """Each has a generator of its own, and finds what it finds alone."""
    model, generator = KINDS[kind]()
    if final:
        model.make_generation_fast_()
    alone = generator()
    expected = [alone(model, number) for number in range(8)]
    assert len({str(words) for words in expected}) == 8
    found: dict[int, list[Any]] = {}
    start = threading.Barrier(4)

    def decode(name: int) -> None:
        own = generator()
        start.wait()
        found[name] = [own(model, number) for number in range(8)]

    threads = [threading.Thread(target=decode, args=(name,)) for name in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert found == dict.fromkeys(range(4), expected)


def test_orders_and_tasks_side_by_side() -> None:
    """In turns, batch by batch, what each finds alone."""
    kinds = {name: make() for name, make in KINDS.items()}
    alone: dict[str, list[Any]] = {}
    for name, (model, generator) in kinds.items():
        decode = generator()
        alone[name] = [decode(model, number) for number in range(3)]
    together: dict[str, list[Any]] = {name: [] for name in kinds}
    decodes = {name: generator() for name, (_, generator) in kinds.items()}
    for number in range(3):
        for name, decode in decodes.items():
            together[name].append(decode(kinds[name][0], number))
    assert together == alone
    assert len({str(words) for words in alone.values()}) >= 4


def training(kind: str, model: Any) -> Callable[[int], None]:
    """A function that makes an update."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows = [torch.tensor([*source, 2]) for source in toy.random_sources(8, 12, 100)]
    sizes, words = [len(row) for row in rows], toy.dictionary(12)
    texts = ListDataset(rows, sizes)
    pairs = LanguagePairDataset(texts, sizes, words, texts, sizes, words, shuffle=False)
    if kind == "refined":
        task: Any = TranslationCMLMCTask(TranslationCMLMCConfig(), words, words)
        criterion: Any = LabelSmoothedDualImitationCriterion(task, 0.1)
        data: Any = StartSymbolPairDataset(pairs, "train")
    else:
        task = toy.task(num_directions=2)
        criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
        data = InterleavedPairDataset(pairs, task.order)
    batch = data.collater([data[number] for number in range(len(rows))])

    def update(number: int) -> None:
        optimizer.zero_grad()
        task.train_step(batch, model, criterion, _Backward(optimizer), number)
        optimizer.step()

    return update


class _Backward:
    """fairseq's optimizer, as far as ``train_step`` knows it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


@pytest.mark.parametrize("kind", ["interleaved", "refined"])
def test_translating_between_updates_changes_neither(kind: str) -> None:
    """The same parameters, dropout included; words are those of the weights of now."""
    trained, words = [], []
    for between in (False, True):
        model, generator = KINDS[kind]()
        torch.manual_seed(3)
        update, decode = training(kind, model), generator()
        for number in range(3):
            update(number)
            if between:
                words.append(decode(model, 1))
                fresh, copied = generator(), copy.deepcopy(model)
                assert words[-1] == fresh(copied, 1)
        trained.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*trained, strict=True))
    assert words[0] != words[1]


@pytest.mark.parametrize("row", ["ibdecoder", *(pytest.param(row, marks=pytest.mark.long) for row in SYSTEMS)])
def test_train_generate_and_train_in_one_process(row: str, system: Callable[[str], System], tmp_path: Path) -> None:
    """By their commands: the checkpoint, and the words, of commands in processes of their own."""
    trained = system(row)
    options = ["--corpus", "embedded", "--row", row, "--scale", "embedded", *TINY, "--log-interval", "1"]

    def train(folder: str, updates: int) -> list[str]:
        return [str(trained.data), *options, "--save-dir", str(tmp_path / folder), "--max-update", str(updates)]

    decoding = [*trained.options, "--path", str(tmp_path / "together/checkpoint_last.pt")]
    steps = [
        ("amlp_fairseq.training.train", train("together", 3)),
        ("fairseq_cli.generate", decoding),
        ("amlp_fairseq.training.train", train("together", 6)),
        ("fairseq_cli.generate", decoding),
    ]
    child = commands.forks.Process(target=several, args=(steps, tmp_path))
    child.start()
    child.join()
    assert child.exitcode == 0
    commands.run("amlp_fairseq.training.train", *train("alone", 6))
    states = [torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("together", "alone")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])
    printed = [(tmp_path / f"printed-{number}").read_text(encoding="utf-8") for number in (1, 3)]
    printed.append(commands.run("fairseq_cli.generate", *decoding))
    words = [re.findall(r"^[HP]-.*", text, flags=re.MULTILINE) for text in printed]
    assert words[0] != words[1] == words[2]
    assert len(words[1]) == 2 * 21


def several(steps: list[tuple[str, list[str]]], folder: Path) -> None:
    """Commands, one after the other in this process."""
    for number, (command, words) in enumerate(steps):
        commands._call(command, words, Path("/dev/null"), folder / f"printed-{number}", Path.cwd(), None)


@pytest.mark.parametrize("final", [False, True], ids=["in training", "final"])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_a_model_that_has_been_made_ready(kind: str, final: bool) -> None:
    model, generator = KINDS[kind]()
    if final:
        model.make_generation_fast_()
    decode = generator()
    expected = [decode(model, number) for number in range(3)]
    copies = [copy.deepcopy(model)]
    if not final:  # fairseq gives final models a function that cannot be pickled
        copies.append(pickle.loads(pickle.dumps(model)))
    for other in copies:
        assert all(parameter.is_leaf and not parameter.is_inference() for parameter in other.parameters())
        fresh = generator()
        assert [fresh(other, number) for number in range(3)] == expected


@pytest.mark.parametrize("final", [False, True], ids=["in training", "final"])
@pytest.mark.parametrize("kind", ["interleaved", "refined"])
def test_models_that_are_converted_or_loaded_after_they_have_been_made_ready(kind: str, final: bool) -> None:
    """The generator goes on with what the model is now."""
    model, generator = KINDS[kind]()
    if final:
        model.make_generation_fast_()
    parameters = {name for name, _ in model.named_parameters()}
    weights = {name: x.flip(0) if name in parameters else x.clone() for name, x in model.state_dict().items()}
    decode = generator()
    before = decode(model, 1)
    for change in (
        lambda: model.to(torch.float64),
        lambda: model.to(torch.bfloat16),
        lambda: model.to(torch.float32),
        lambda: model.load_state_dict(weights),
    ):
        change()
        fresh = generator()
        assert decode(model, 1) == fresh(model, 1)
    assert decode(model, 1) != before


#: What the plugin replaces or adds in fairseq, numpy and torch, and the test that it is for stock's tasks what it was.
REPLACED = {
    **{f"{module} eval": "test_literal_options.py" for module in literal_options.MODULES},
    **{f"numpy {name}": "test_library_names.py" for name in ("float", "int", "compat", "percentile")},
    "torch._weights_only_unpickler _marked_safe_globals_set": "test_checkpoint_utils.py",
    "fairseq.distributed.utils call_main": "test_distributed.py, below",
    "fairseq.distributed_utils call_main": "test_distributed.py, below",
    "fairseq.file_io PathManager.copy": "test_file_io.py, below",
    "fairseq.file_io PathManager.isfile": "test_finetuning.py, below",
    "fairseq.utils load_align_dict": "test_unknown_words.py",
    "fairseq.utils post_process_prediction": "test_unknown_words.py",
    "fairseq.tasks.fairseq_task FairseqTask.build_generator": "test_unknown_words.py",
    "fairseq.data.concat_dataset ConcatDataset.__init__": "test_data.py",
    "fairseq.data.indexed_dataset make_dataset": "test_untrusted_input.py, below",
    "fairseq.options parse_args_and_arch": "test_options.py, below",
    "fairseq.options get_parser": "test_mistakes.py, below",
    "fairseq_cli.generate main": "test_mistakes.py, below",
    "fairseq_cli.interactive main": "test_mistakes.py, below",
    "fairseq.checkpoint_utils load_checkpoint": "below",
    "fairseq.checkpoint_utils save_checkpoint": "test_train.py, below",
    "fairseq.checkpoint_utils load_checkpoint_to_cpu": "test_checkpoint_utils.py, below",
    "fairseq.checkpoint_utils _upgrade_state_dict": "test_imported.py",
    "fairseq.data.iterators FrozenBatchSampler.__init__": "test_data.py",
    "fairseq.tasks.translation_from_pretrained_bart TranslationFromPretrainedBARTTask.__init__": "test_imported.py",
    "fairseq.sequence_generator NGramRepeatBlock": "test_sequence_generator.py",
    "fairseq.data.audio.audio_utils get_mel_filters": "test_audio.py",
    "fairseq.models.text_to_speech.vocoder get_mel_filters": "test_audio.py",
    "fairseq.trainer Trainer.__init__": "test_trainer.py",
    "fairseq.trainer Trainer.train_step": "test_training_memory.py, below",
    "fairseq.trainer NanDetector": "test_trainer.py",
    "fairseq.trainer Trainer.load_checkpoint": "test_finetuning.py, below",
    "fairseq.trainer Trainer.state_dict": "test_crash_and_resume.py, below",
    "fairseq.optim.fp16_optimizer FP16Optimizer.load_state_dict": "test_crash_and_resume.py",
    "fairseq.optim.dynamic_loss_scaler DynamicLossScaler.check_overflow": "test_optim.py",
}
#: Commands in one process; what has another identity when the plugin has been imported goes to a file.
PROGRAM = """
import importlib, inspect, json, os, sys, warnings
steps, modules, file = json.loads(sys.argv[1])
from fairseq_cli import generate, interactive, train, validate
if modules:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            importlib.import_module(name)

    def names():
        found = {}
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in ("fairseq", "fairseq_cli", "numpy", "torch"):
                for key, value in list(vars(module).items()):
                    found[f"{name} {key}"] = value
                    if inspect.isclass(value) and value.__module__ == name:
                        found |= {f"{name} {key}.{each}": part for each, part in vars(value).items()}
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = names()
        import amlp_fairseq
        after = names()
    seen = {name.split()[0] for name in before}
    changed = [name for name in after if name.split()[0] in seen and after[name] is not before.get(name)]
    json.dump([name for name in changed if not inspect.ismodule(after[name])], open(file, "w"))
for name, words in steps:
    sys.argv = ["fairseq-" + name, *words]
    print("#", name, flush=True)
    {"train": train, "interactive": interactive, "generate": generate, "validate": validate}[name].cli_main()
"""
TIMES = (
    r"(?<=\| )\d{4}-\d\d-\d\d [\d:]+|^\d{4}-\d\d-\d\d [\d:]+|\b(wps|ups|wall|train_wall)['\"]?[=: ]+['\"]?[\d.e+-]+"
    r"|Translated .*? in .*?s \(.*?\)|^(W-\d+)\t.*|(Total time|translation time): [\d.]+"
    r"|(writing took|done training in) [\d.]+"
)


def stock(data: Path, folder: Path, *more: str, modules: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """What stock fairseq prints of a stock Transformer, without times, and its checkpoint."""
    folder.mkdir()
    (folder / "text").write_text("w1 w2 never\n\nw3\n", encoding="utf-8")
    shared = [str(data), "--cpu", *more]
    decoding = [*shared, "--path", "model/checkpoint_last.pt", "--beam", "3", "--max-len-b", "9"]
    often = ["--save-interval-updates", "3", "--keep-interval-updates", "1", "--max-update"]
    training = [*shared, "--arch", "transformer_tiny", "--max-tokens", "200", "--lr", "0.005", "--save-dir", "model"]
    training += [*commands.TRAINING, "--log-interval", "1", "--encoder-learned-pos"]
    steps = [
        ["train", [*training, *often, "4"]],
        ["train", [*training, *often, "6"]],
        ["generate", [*decoding, "--nbest", "2"]],
        ["generate", [*decoding, "--batch-size", "5", "--print-alignment", "--results-path", "results"]],
        ["interactive", [*decoding, "--input", "text", "--buffer-size", "2", "--batch-size", "2"]],
    ]
    arguments = json.dumps([steps, modules, "changed.json"])
    # torch refuses fairseq's checkpoints otherwise
    done = commands.fresh(
        sys.executable,
        "-c",
        PROGRAM,
        arguments,
        cwd=folder,
        env={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"},
    )
    printed = done.stdout + (folder / "results/generate-test.txt").read_text(encoding="utf-8")
    printed = re.sub(TIMES, "<time>", printed.replace(f"{folder}/", ""), flags=re.MULTILINE)
    return printed, torch.load(folder / "model/checkpoint_last.pt", weights_only=False)


def test_stock_is_stock(data: Path, tmp_path: Path) -> None:
    """A stock Transformer: every byte but times, with the plugin imported and not used. Nothing else is replaced."""
    modules = tuple({name.split()[0] for name in REPLACED if name.startswith("fairseq")})
    (plain, one), (with_plugin, two) = (
        stock(data, tmp_path / "plain"),
        stock(data, tmp_path / "plugin", "--user-dir", str(commands.PLUGIN), modules=modules),
    )
    changed = set(json.loads((tmp_path / "plugin/changed.json").read_text()))
    assert sorted(changed - REPLACED.keys()) == []
    assert sorted(REPLACED.keys() - changed) == []
    user_dir = re.escape(str(commands.PLUGIN))
    cleaned = re.sub(rf"(user_dir'?[=:] ?)'{user_dir}'", r"\1None", with_plugin)
    cleaned = re.sub(r".*--user-dir=.* has already been imported\.\n", "", cleaned)
    assert cleaned == plain
    assert len(re.findall(r"^H-", plain, flags=re.MULTILINE)) == 2 * 16 + 20 + 3  # stock drops the rest of a batch
    assert all(torch.equal(tensor, two["model"][name]) for name, tensor in one["model"].items())
    assert one["model"].keys() == two["model"].keys()
    assert one.keys() == two.keys()
    assert one["task_state"].keys() == two["task_state"].keys()
