"""Apply each fault of mutations.yaml in a copy of the checkout and say which test finds it.

    python -m tests.mutations.check [--checkout FOLDER] [WORD …]

With WORDs only the faults that have one of them. Status 1 if no test finds a fault, or if one finds some without it.
Every fault is tried in a fork of this process, which has imported fairseq: in seconds, in the engine in half a minute.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).with_name("mutations.yaml")
#: The engine's fastest instruction set here; the package itself is imported in the forks only.
ISA = runpy.run_path(str(ROOT / "amlp_fairseq/engine/isa.py"))["supported"]()[0]


def the_file(folder: Path, name: str, text: str = "") -> Path:
    """The one file of this name below a folder that has a text once.

    Raises:
        SystemExit: unless there is exactly one.
    """
    found = [path for path in folder.rglob(name) if not text or path.read_text(encoding="utf-8").count(text) == 1]
    if len(found) != 1:
        sys.exit(f"{FAULTS.name}: {len(found)} files named {name} below {folder} have once: {text}")
    return found[0]


def selection(tests: str, copy: Path) -> list[str]:
    """The arguments of pytest for what a fault's ``tests`` name."""
    names, _, words = tests.replace("ISA", ISA).partition(" -k ")
    paths = []
    for name in names.split():
        file, *function = name.split("::", 1)
        paths.append("::".join([str(the_file(copy / "tests", file)), *function]))
    return [*paths, *(["-k", words] if words else [])]


class FirstFailure:
    """A plugin of pytest that remembers the first test that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def compile_engine(copy: Path) -> None:
    """Compile the engine for the fastest instruction set."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=copy, env={**os.environ, "AMLP_FAIRSEQ_ISA": ISA}, capture_output=True, check=True)


def copy_engine(checkout: Path, copy: Path) -> None:
    for library in (checkout / "amlp_fairseq/engine").glob("*.so"):
        shutil.copy(library, copy / "amlp_fairseq/engine")


def run(arguments: list[str], copy: Path) -> tuple[int, str]:
    """Run pytest in a fork: its status, and the first test that failed."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        os.dup2(os.open(copy / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        first = FirstFailure()
        status = pytest.main([*arguments, "-x", "-q", "-m", "", "-p", "no:cacheprovider"], plugins=[first])
        sys.stdout.flush()
        os.write(sink, first.name.encode())
        os._exit(int(status))
    os.close(sink)
    with os.fdopen(source, "rb") as file:
        name = file.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), name


def copied(checkout: Path, folder: Path) -> Path:
    """A copy of a checkout's files, those that git ignores left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (checkout / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkout / name, folder / name)
    return folder


def main() -> int:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", metavar="WORD", nargs="*", help="try the faults that have one of these words only")
    parser.add_argument(
        "--checkout", type=Path, default=ROOT, help="folder with the package and the tests (default: this one)"
    )
    args = parser.parse_args()
    faults = [
        fault
        for fault in yaml.safe_load(FAULTS.read_text(encoding="utf-8"))
        if not args.words or any(word in str(fault) for word in args.words)
    ]
    os.environ["TRITON_INTERPRET"] = "1"
    import fairseq.tasks  # noqa: F401  # once, for all forks

    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(args.checkout, Path(folder))
        copy_engine(args.checkout, copy)
        for number, fault in enumerate(faults, 1):
            path, tests = (
                the_file(copy / "amlp_fairseq", fault["file"], fault["before"]),
                selection(fault["tests"], copy),
            )
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(fault["before"], fault["after"]), encoding="utf-8")
            if path.suffix == ".h":
                compile_engine(copy)
            status, name = run(tests, copy)
            path.write_text(text, encoding="utf-8")
            if path.suffix == ".h":
                copy_engine(args.checkout, copy)
            if status > 1:
                sys.exit(f"{fault['fault']}: pytest ended with {status}\n{(copy / 'log').read_text()[-2000:]}")
            caught = bool(status)
            if status < 0:
                name = f"signal {-status} in {fault['tests']}"
            wrong += not caught
            print(
                f"{number}/{len(faults)} {fault['fault']}: {name if caught else 'NOT FOUND by ' + fault['tests']}",
                flush=True,
            )
        for tests in sorted({fault["tests"] for fault in faults}):
            status, name = run(selection(tests, copy), copy)
            if status:
                wrong += 1
                print(f"fails without a fault: {name or tests}", flush=True)
    print(f"{len(faults)} faults, {wrong} wrong")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
