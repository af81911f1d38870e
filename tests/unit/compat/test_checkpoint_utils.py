"""fairseq's checkpoints load with ``weights_only`` on; one that would run code is refused by name."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq_cli import train

from amlp_fairseq.training.average import average_checkpoints

pytestmark = pytest.mark.xdist_group("safe-checkpoints")
INTERLEAVED = ["--user-dir", str(commands.PLUGIN), "--task", "translation_interleaved"]
DATA = ["--source-lang", "src", "--target-lang", "tgt", "--dataset-impl", "raw", "--num-workers", "0"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random sentences that ``--dataset-impl raw`` reads."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(1)
    words = [f"w{i}" for i in range(10)]
    for language in ("src", "tgt"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{word} 1\n" for word in words))
        for split, count in {"train": 40, "valid": 5, "test": 5}.items():
            lines = [" ".join(rng.choices(words, k=rng.randint(1, 8))) + "\n" for _ in range(count)]
            (folder / f"{split}.src-tgt.{language}").write_text("".join(lines))
    return folder


def training(corpus: Path, save_dir: Path, updates: int, *options: str) -> list[str]:
    return [
        *(str(corpus), *DATA, "--save-dir", str(save_dir), "--max-update", str(updates), "--max-tokens", "60"),
        *("--lr", "0.001", "--no-epoch-checkpoints", *commands.TRAINING, *options),
    ]


def eval_bleu(updates: int) -> list[str]:
    return [
        *INTERLEAVED,
        *("--arch", "ibdecoder_tiny", "--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 10}'),
        *("--eval-bleu-detok", "space", "--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
        *("--validate-interval-updates", str(updates)),
    ]


def train_here(options: list[str]) -> None:
    """fairseq-train in this process: what matters is the file that it writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fairseq-train", *options])
        train.cli_main()


@pytest.fixture(scope="module")
def interleaved(corpus: Path) -> Path:
    """A checkpoint of ibdecoder trained with ``--eval-bleu``."""
    train_here(training(corpus, corpus / "interleaved", 3, *eval_bleu(3)))
    return corpus / "interleaved/checkpoint_last.pt"


@pytest.fixture(scope="module")
def transformer(corpus: Path) -> Path:
    """A checkpoint of the stock Transformer, whose options are an ``argparse.Namespace``."""
    sizes = [
        f"--{side}-{name}={value}"
        for side in ("encoder", "decoder")
        for name, value in {"layers": 1, "embed-dim": 16, "ffn-embed-dim": 16, "attention-heads": 2}.items()
    ]
    train_here(training(corpus, corpus / "transformer", 2, "--arch", "transformer", *sizes, "--disable-validation"))
    return corpus / "transformer/checkpoint_last.pt"


@pytest.mark.parametrize("module", ["numpy.core", "numpy._core"])
@pytest.mark.parametrize("counts", [np.array([3, 4]), np.array([3.0, 4.0])], ids=["one process", "several"])
def test_what_eval_bleu_has_counted_is_data(counts: Any, module: str, tmp_path: Path) -> None:
    """Under the names of NumPy 1 and 2; several processes add their counts in float64."""
    torch.save({"counts": counts}, tmp_path / "saved.pt")
    with zipfile.ZipFile(tmp_path / "saved.pt") as saved, zipfile.ZipFile(tmp_path / "named.pt", "w") as named:
        for name in saved.namelist():
            named.writestr(name, saved.read(name).replace(b"numpy._core.", f"{module}.".encode()))
    loaded = torch.load(tmp_path / "named.pt", weights_only=True)["counts"]
    np.testing.assert_array_equal(loaded, counts)


class Attack:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


ATTACKS: dict[str, Callable[[Path], Attack]] = {  # by the name that torch gives the function
    "posix.system": lambda trace: Attack(os.system, f"touch '{trace}'"),
    "eval": lambda trace: Attack(eval, f"open({str(trace)!r}, 'w')"),
    f"{open.__module__}.open": lambda trace: Attack(open, str(trace), "w"),
}


def attack(folder: Path, function: str, genuine: Path | None) -> tuple[Path, Path]:
    """A checkpoint, made from a genuine one or not, that runs ``function`` when unpickled, and the file it makes."""
    trace, checkpoint = folder / "trace", folder / "attack.pt"
    state: dict[str, Any] = {"model": {}}
    if genuine is not None:
        state = torch.load(genuine, weights_only=False)
    state.setdefault("extra_state", {})["note"] = ATTACKS[function](trace)
    torch.save(state, checkpoint)
    return checkpoint, trace


@contextlib.contextmanager
def no_allow_list() -> Iterator[None]:
    """torch as it is without the plugin."""
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        yield
    finally:
        torch.serialization.add_safe_globals(allowed)


@pytest.mark.parametrize("inside", ["alone", "genuine"])
@pytest.mark.parametrize("function", ATTACKS)
def test_load_refuses_code(function: str, inside: str, interleaved: Path, tmp_path: Path) -> None:
    checkpoint, trace = attack(tmp_path, function, interleaved if inside == "genuine" else None)
    with pytest.raises(pickle.UnpicklingError, match=re.escape(f"{checkpoint} is refused: it holds {function}, ")):
        checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    assert not trace.exists()


def test_the_attacks_are_real(interleaved: Path, tmp_path: Path) -> None:
    """Without ``weights_only`` each of the checkpoints above does what it is refused for."""
    checkpoints, traces = [], []
    for number, function in enumerate(ATTACKS):
        for genuine in (None, interleaved):
            folder = tmp_path / f"{number}-{genuine is None}"
            folder.mkdir()
            checkpoint, trace = attack(folder, function, genuine)
            checkpoints.append(checkpoint)
            traces.append(trace)
    assert not any(trace.exists() for trace in traces)
    for checkpoint in checkpoints:
        torch.load(checkpoint, weights_only=False)
    assert [trace for trace in traces if not trace.exists()] == []


def test_generate_refuses_code(corpus: Path, interleaved: Path, tmp_path: Path) -> None:
    checkpoint, trace = attack(tmp_path, "posix.system", interleaved)
    result = commands.fresh(
        *("fairseq_cli.generate", corpus, *DATA, *INTERLEAVED, "--cpu", "--path", checkpoint), check=False
    )
    assert result.returncode != 0
    assert f"UnpicklingError: {checkpoint} is refused: it holds posix.system, " in result.stdout
    assert not trace.exists()


def test_average_checkpoints_refuses_code(interleaved: Path, tmp_path: Path) -> None:
    checkpoint, trace = attack(tmp_path, "posix.system", interleaved)
    average = tmp_path / "average.pt"
    words = ["--inputs", interleaved, checkpoint, "--output", average]
    printed = commands.run("amlp_fairseq.training.average", *words, check=False)
    assert f"UnpicklingError: {checkpoint} is refused: it holds posix.system, " in printed
    assert not trace.exists()
    assert not average.exists()


def test_load_refuses_code_in_a_bare_pickle(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes(pickle.dumps({"model": ATTACKS["posix.system"](tmp_path / "trace")}, protocol=2))
    with pytest.raises(pickle.UnpicklingError, match=re.escape(f"{checkpoint} is refused: it holds posix.system, ")):
        checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    assert not (tmp_path / "trace").exists()


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "its beginning": lambda whole: whole[: len(whole) // 2],
    "its first bytes": lambda whole: whole[:100],
    "a changed list of contents": lambda whole: whole.replace(b"PK\x01\x02", b"PK\x00\x00"),
    "a changed name": lambda whole: whole.replace(b"first_weight", b"first_\xffeight"),
    "another zip": lambda whole: whole.replace(b"data.pkl", b"data.txt"),
    "another pickle": lambda whole: pickle.dumps({"model": {}}, protocol=2),
    "half a pickle": lambda whole: pickle.dumps({"model": {}}, protocol=2)[:7],
    "text": lambda whole: b"hello, no checkpoint\n",
}


def small_checkpoint(path: Path) -> Path:
    torch.save({"model": {"first_weight": torch.ones(3000)}}, path)
    return path


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_and_foreign_files_are_named(damage: str, tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint.pt")
    checkpoint.write_bytes(DAMAGED[damage](checkpoint.read_bytes()))
    with pytest.raises(ValueError, match=f"^{re.escape(str(checkpoint))} is damaged or no checkpoint: "):
        checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    with pytest.raises(ValueError, match=f"^{re.escape(str(checkpoint))} is damaged or no checkpoint: "):
        average_checkpoints([checkpoint])


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    for load in (
        lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path)),
        lambda path: average_checkpoints([path]),
    ):
        with pytest.raises(FileNotFoundError, match=r"missing\.pt"):
            load(tmp_path / "missing.pt")


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory"), KeyError("task"), pickle.UnpicklingError("no")])
def test_errors_behind_the_reading_stay_what_they_are(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upgrade(state: dict[str, Any]) -> None:
        raise error

    monkeypatch.setattr(checkpoint_utils, "_upgrade_state_dict", upgrade)
    with pytest.raises(type(error)) as raised:
        checkpoint_utils.load_checkpoint_to_cpu(str(small_checkpoint(tmp_path / "checkpoint.pt")))
    assert raised.value is error


@pytest.mark.parametrize(
    ("allocate", "error"),
    [
        (lambda *_, **__: torch.empty(1 << 50, dtype=torch.uint8), RuntimeError),
        (lambda *_, **__: bytes(1 << 60), MemoryError),
    ],
    ids=["torch", "Python"],
)
def test_too_little_memory_is_not_the_files_fault(
    allocate: Callable[..., Any], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint.pt")
    monkeypatch.setattr(torch.serialization, "_load", allocate)
    with pytest.raises(error):
        checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))


def test_of_two_files_the_damaged_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where loading one means to load another."""
    load, damaged = checkpoint_utils.load_checkpoint_to_cpu, tmp_path / "damaged.pt"
    damaged.write_bytes(b"")
    monkeypatch.setattr(checkpoint_utils, "_upgrade_state_dict", lambda state: load(str(damaged)))
    with pytest.raises(ValueError, match=f"^{re.escape(str(damaged))} is damaged"):
        load(str(small_checkpoint(tmp_path / "checkpoint.pt")))


def test_stock_checkpoint_loads(transformer: Path) -> None:
    with no_allow_list(), pytest.raises(pickle.UnpicklingError, match=r"it holds argparse\.Namespace"):
        checkpoint_utils.load_checkpoint_to_cpu(str(transformer))
    assert torch.load(transformer, weights_only=True)["cfg"]["model"].arch == "transformer"
    state = checkpoint_utils.load_checkpoint_to_cpu(str(transformer))
    assert state["cfg"]["model"].arch == "transformer"
    assert state["optimizer_history"][-1]["num_updates"] == 2


def test_interleaved_checkpoint_loads(interleaved: Path) -> None:
    with no_allow_list(), pytest.raises(pickle.UnpicklingError, match="numpy"):  # what --eval-bleu leaves
        checkpoint_utils.load_checkpoint_to_cpu(str(interleaved))
    assert torch.load(interleaved, weights_only=True)["cfg"]["task"]["eval_bleu"] is True
    state = checkpoint_utils.load_checkpoint_to_cpu(str(interleaved))
    assert state["cfg"]["model"]["_name"] == "ibdecoder_tiny"
    assert "_bleu_sys_len" in str(state["extra_state"]["metrics"]["valid"])


def test_training_resumes(corpus: Path, interleaved: Path, tmp_path: Path) -> None:
    shutil.copytree(interleaved.parent, tmp_path / "resumed")
    output = commands.run("fairseq_cli.train", *training(corpus, tmp_path / "resumed", 5, *eval_bleu(5)))
    assert re.search(r"Loaded checkpoint \S+checkpoint_last\.pt \(epoch \d+ @ 3 updates\)", output)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "resumed/checkpoint_last.pt"))
    assert state["optimizer_history"][-1]["num_updates"] == 5


def test_validate_reads_checkpoints(corpus: Path, interleaved: Path) -> None:
    output = commands.run(
        *("fairseq_cli.validate", corpus, *DATA, *INTERLEAVED, "--cpu", "--path", interleaved),
        *("--valid-subset", "test", "--max-tokens", "60"),
    )
    assert re.search(r"\| test \| .*loss \d", output)


def test_interactive_reads_checkpoints(corpus: Path, interleaved: Path) -> None:
    output = commands.run(
        *("fairseq_cli.interactive", corpus, *DATA, *INTERLEAVED, "--cpu", "--path", interleaved),
        *("--input", corpus / "test.src-tgt.src", "--max-len-b", "10"),
    )
    assert commands.lines(output, "H").keys() == set(range(5))


def test_safe_loading_is_not_switched_off() -> None:
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in os.environ


def test_allow_list_holds_nothing_that_runs_code() -> None:
    """The exact types: none of their constructors takes code or a file name."""
    program = (
        "import json, os, torch, torch.distributed.device_mesh, torch.nested, fairseq.models, fairseq.tasks\n"
        "name = lambda t: t[1] if isinstance(t, tuple) else f'{t.__module__}.{t.__qualname__}'\n"
        "names = lambda: {name(t) for t in torch.serialization.get_safe_globals()}\n"
        "before = names()\n"
        "import amlp_fairseq\n"
        "print('ADDED', json.dumps(sorted(names() - before)))\n"
        "print('SWITCHED OFF', 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD' in os.environ)"
    )
    output = commands.fresh(sys.executable, "-c", program).stdout
    assert json.loads(output.split("ADDED ")[1].splitlines()[0]) == [
        "argparse.Namespace",
        "builtins.dict",
        "builtins.int",
        "builtins.list",
        "collections.defaultdict",
        "fairseq.distributed.utils._TensorPlaceholder",
        "fairseq.meters.AverageMeter",
        "fairseq.meters.StopwatchMeter",
        "fairseq.meters.TimeMeter",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy.core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy.dtype",
        "numpy.dtypes.BoolDType",
        "numpy.dtypes.Float32DType",
        "numpy.dtypes.Float64DType",
        "numpy.dtypes.Int32DType",
        "numpy.dtypes.Int64DType",
        "numpy.ndarray",
        "omegaconf.base.ContainerMetadata",
        "omegaconf.base.Metadata",
        "omegaconf.dictconfig.DictConfig",
        "omegaconf.listconfig.ListConfig",
        "omegaconf.nodes.AnyNode",
        "typing.Any",
    ]
    assert "SWITCHED OFF False" in output
