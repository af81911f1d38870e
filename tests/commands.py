"""fairseq's commands in processes of their own, with the command lines that a user would write."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
import torch

from amlp_fairseq.evaluation.score import lines_by_sentence

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "amlp_fairseq"
TRAINING = [
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--optimizer", "adam"),
    *("--adam-betas", "(0.9,0.98)", "--cpu", "--seed", "1", "--no-progress-bar"),
]


# A clean process that has imported fairseq and forks one child for each command: a start takes no seconds.
MODULES = [f"fairseq_cli.{name}" for name in ("preprocess", "train", "generate", "interactive", "validate", "eval_lm")]
forks = multiprocessing.get_context("forkserver")
MODULES += [
    f"amlp_fairseq.{name}"
    for name in ("plugin", "cli.main", "corpora.prepare", "evaluation.reproduce", "evaluation.score", "training.train")
]
MODULES += ["torch._dynamo"]  # every training imports it, which would take longer than the training
MODULES += ["pytest"]  # with it and evaluation.score a child has all that this module imports
forks.set_forkserver_preload(MODULES)


def run(command: str, *arguments: object, text: str = "", check: bool = True, cwd: Path | None = None) -> str:
    """Run a module's command (``fairseq_cli.train``, ``amlp_fairseq.training.train``, …) in a process of its own.

    Args:
        command: the module; its ``cli_main`` or ``main`` is called.
        arguments: the command line.
        text: standard input.
        check: whether a failure is an error, or a success is where it is False.
        cwd: the folder to run it in.

    Returns:
        standard output and error together.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "in"), Path(folder, "out")
        source.write_text(text, encoding="utf-8")
        child = start(command, *arguments, source=source, output=output, cwd=cwd)
        child.join()
        printed = output.read_text(encoding="utf-8")
    words = " ".join(map(str, arguments))
    assert (child.exitcode == 0) == check, f"{command} {words}: status {child.exitcode}\n{printed[-4000:]}"
    return printed


def run_module(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Stand for ``subprocess.run`` of ``python -m MODULE …`` whose output is wanted as one text."""
    assert words[:2] == [sys.executable, "-m"], words
    assert options == {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.CompletedProcess(words, 0, run(words[2], *words[3:]))


def start(
    command: str,
    *arguments: object,
    source: Path = Path(os.devnull),
    output: Path = Path(os.devnull),
    cwd: Path | None = None,
    errors: Path | None = None,
    own_session: bool = False,
) -> Any:
    """The process of a module's command, see :func:`run`, with files as its input and output (and standard error, if
    that is not to be the same); not waited for. One with a session of its own can be killed with all that it has
    started: :func:`kill_session`."""
    words = [str(argument) for argument in arguments]
    child = forks.Process(target=_call, args=(command, words, source, output, cwd or Path.cwd(), errors, own_session))
    child.start()
    return child


def kill_session(child: Any) -> None:
    """SIGKILL for a process with a session of its own, and for those that it has started."""
    child.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.join()


def _call(
    command: str,
    words: list[str],
    source: Path,
    output: Path,
    cwd: Path,
    errors: Path | None,
    own_session: bool = False,
) -> None:
    gc.freeze()  # what is imported stays
    sys.stdout.flush()
    if own_session:
        os.setsid()
    else:
        subprocess.run = Forks().run  # type: ignore[assignment]
    os.chdir(cwd)
    for path, flags, descriptor in ((source, os.O_RDONLY, 0), (output, os.O_WRONLY | os.O_CREAT, 1)):
        os.dup2(os.open(path, flags), descriptor)
    os.dup2(1 if errors is None else os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    _main(command, words)


def _main(command: str, words: list[str]) -> None:
    """Call the main function of a module with a command line."""
    sys.argv = [command, *words]
    torch.set_num_threads(1)
    # As in a process of its own; a DataLoader would start another server, which takes longer than most commands.
    multiprocessing.set_start_method("fork", force=True)
    module = importlib.import_module(command)
    getattr(module, "cli_main", getattr(module, "main", None))()


class Forks:
    """What stands for ``subprocess.run`` in a command: what it starts as ``python -m …`` are forks of its process as
    that was when this was made, without threads."""

    def __init__(self) -> None:
        self.run_program = subprocess.run
        self.requests, served = socket.socketpair(type=socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self.requests.close()
            self._serve(served)
        served.close()

    def run(self, words: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        if words[:2] != [sys.executable, "-m"] or not hasattr(options.get("stdout"), "fileno"):
            return self.run_program(words, **options)
        output, errors = options["stdout"], options["stderr"]
        errors = output if errors == subprocess.STDOUT else errors
        answer, theirs = socket.socketpair()
        request = [words[2:], str(Path(options.get("cwd", ".")).absolute()), options.get("env") or dict(os.environ)]
        descriptors = [each.fileno() for each in (theirs, output, errors)]
        socket.send_fds(self.requests, [json.dumps(request).encode()], [*descriptors, *options.get("pass_fds", ())])
        theirs.close()
        with answer, answer.makefile() as file:
            return subprocess.CompletedProcess(words, int(file.read()))

    def _serve(self, requests: socket.socket) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            request, descriptors, *_ = socket.recv_fds(requests, 1 << 18, 8)
            if not request:
                os._exit(0)
            if os.fork() == 0:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                child = multiprocessing.get_context("fork").Process(
                    target=self._program, args=(*json.loads(request), *descriptors[1:3])
                )
                child.start()
                child.join()
                socket.socket(fileno=descriptors[0]).sendall(str(child.exitcode).encode())
                os._exit(0)
            for descriptor in descriptors:
                os.close(descriptor)

    @staticmethod
    def _program(words: list[str], cwd: str, environment: dict[str, str], output: int, errors: int) -> None:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        _main("amlp_fairseq.cli.main" if words[0] == "amlp_fairseq" else words[0], words[1:])


def fresh(*command: object, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run any program in a process that shares nothing with this one; both outputs together in ``stdout``.

    ``fairseq_cli.<name>``, ``amlp_fairseq`` and its modules stand for ``python -m <module>``.
    """
    words = [str(word) for word in command]
    if words[0].split(".")[0] in ("fairseq_cli", "amlp_fairseq"):
        words = [sys.executable, "-m", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    result = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, **options
    )
    assert not check or result.returncode == 0, f"{' '.join(words)}\n{result.stdout[-4000:]}"
    return result


def call(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object, **options: Any) -> None:
    """Run a script's ``main`` in this process with a command line: ``options`` as flags, then ``arguments``. The number
    of PyTorch's threads stays as it is."""
    words: list[object] = []
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *(value if isinstance(value, list) else [value])]
    monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, [*words, *arguments])])
    threads = torch.get_num_threads()
    try:
        script.main()
    finally:
        torch.set_num_threads(threads)


def measured(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: object
) -> tuple[dict[str, Any], str]:
    """The numbers of a benchmark program that ``run`` calls, and its plot; both say where they were measured."""
    out, plot = folder / "numbers.json", folder / "plot.svg"
    run(monkeypatch, *arguments, "--out", out, "--plot", plot)
    result, drawn = json.loads(out.read_text(encoding="utf-8")), plot.read_text(encoding="utf-8").replace("&#x2F;", "/")
    assert result["device"].endswith("(CPU)")
    assert result["device"] in drawn
    assert result["torch"] in (torch.__version__, torch.__version__.split("+")[0])  # PyPI's wheel leaves the build out
    assert result["threads"] == 1
    assert {"triton", "commit", "date"} <= result.keys()
    return result, drawn


def preprocess(raw: Path, out: Path, source: str = "en", target: str = "de") -> Path:
    """Binarise RAW/{train,valid,test} with a joined dictionary."""
    prefixes = [word for split in ("train", "valid", "test") for word in (f"--{split}pref", raw / split)]
    run("fairseq_cli.preprocess", "-s", source, "-t", target, "--destdir", out, "--joined-dictionary", *prefixes)
    return out


#: The fields of each sentence's first line ``PREFIX-<sentence>``; test_score.py checks it by hand-made output.
lines = lines_by_sentence
