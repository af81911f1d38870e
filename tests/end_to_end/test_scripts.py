"""The scripts in a copy of the checkout, as a stranger starts them: --help, mistakes, without what they need."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import commands
import pytest

from amlp_fairseq.training.results import read_results

SCRIPTS = commands.ROOT / "scripts"
#: test_long.sh and test_matrix.sh hand all their arguments on to pytest and nox.
OWN = sorted(path.name for path in SCRIPTS.glob("*.sh") if path.name not in ("test_long.sh", "test_matrix.sh"))
SOURCED = ("lib.sh", "venv.sh")
STARTED = [name for name in OWN if name not in SOURCED]
WRAPPERS = ("align.sh", "distill.sh", "evaluate.sh", "reproduce.sh", "train.sh")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the scripts read before they do anything."""
    copy = tmp_path / "checkout"
    (copy / "scripts").mkdir(parents=True)
    names = [*(f"scripts/{path.name}" for path in SCRIPTS.iterdir() if path.is_file()), "setup.py", "pyproject.toml"]
    for name in names:
        (copy / name).write_bytes((commands.ROOT / name).read_bytes())
    return copy


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def start(checkout: Path, name: str, *words: object, **environment: object) -> subprocess.CompletedProcess[str]:
    """Run a script without an environment that has amlp-fairseq."""
    settings = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "HOME": str(checkout.parent), **environment}
    command = ["bash", f"scripts/{name}", *map(str, words)]
    texts = {key: str(value) for key, value in settings.items()}
    return subprocess.run(command, cwd=checkout, env=texts, capture_output=True, text=True, timeout=60)


def refusal(checkout: Path, name: str, *words: object, **environment: object) -> str:
    """The one line with which a script refuses, having changed no file."""
    before = files(checkout.parent)
    done = start(checkout, name, *words, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert files(checkout.parent) == before
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{name.removesuffix('.sh')}: ")
    return line.partition(": ")[2]


def test_help_does_nothing_else(checkout: Path) -> None:
    before = files(checkout)
    for number, name in enumerate([*STARTED, "test_long.sh", "test_matrix.sh"]):
        done = start(checkout, name, ("--help", "-h")[number % 2])
        assert (done.returncode, done.stderr) == (0, ""), name
        assert f"bash scripts/{name}" in done.stdout
        assert not re.search(r"^#|^set -", done.stdout, flags=re.MULTILINE), name
    assert files(checkout) == before


def test_unknown_arguments_are_refused_before_anything_happens(checkout: Path) -> None:
    for name in STARTED:
        line = refusal(checkout, name, "--nonsense")
        if name in WRAPPERS or name.startswith("wmt14_"):  # it is amlp-fairseq that knows the arguments
            assert line == "amlp-fairseq is not installed: bash scripts/install.sh"
        else:
            assert "--nonsense" in line
            assert f"bash scripts/{name} --help" in line


def test_wrappers_hand_everything_on(checkout: Path) -> None:
    programs = checkout / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "amlp-fairseq").write_text('#!/bin/sh\nprintf "<%s>" "$@"\nexit 3\n', encoding="utf-8")
    (programs / "amlp-fairseq").chmod(0o755)
    for name in WRAPPERS:
        command = name.removesuffix(".sh").replace("_", "><", 1)
        done = start(checkout, name, "a b", "--c=*")
        assert (done.returncode, done.stdout) == (3, f"<{command}><a b><--c=*>")
        done = start(checkout, name, "x", "--help")
        assert done.stdout.splitlines()[-1] == f"<{command}><x><--help>"
        assert f"bash scripts/{name}" in done.stdout


def test_what_the_scripts_have_not_made_stays(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv/mine").write_text("", encoding="utf-8")
    line = refusal(checkout, "install.sh")
    assert line.startswith(f"{checkout}/.venv was not made by this script (it has no file named recipe): move it away")
    (checkout / "work/quickstart").mkdir(parents=True)
    line = refusal(checkout, "quickstart.sh")
    assert line.startswith(f"{checkout}/work/quickstart was not made by this script")


def python(folder: Path, version: str) -> Path:
    """An interpreter that says it is another version."""
    fake = folder / f"python{version}"
    fake.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
    fake.chmod(0o755)
    return fake


@pytest.mark.parametrize("name", ["install.sh", "build_wheels.sh"])
def test_each_thing_that_is_missing_has_its_own_sentence(checkout: Path, name: str) -> None:
    """Also where an earlier .venv is to be made anew: it stays."""
    (checkout / ".venv").mkdir()
    (checkout / ".venv/recipe").write_text("an older one", encoding="utf-8")
    words = ["../out"] if name == "build_wheels.sh" else []
    old = python(checkout.parent, "3.13")
    assert refusal(checkout, name, *words, PYTHON=old) == (
        f"Python 3.10, 3.11 or 3.12 is needed, {old} is 3.13; set PYTHON"
    )
    assert refusal(checkout, name, *words, PYTHON="no-python").startswith("there is no no-python; set PYTHON to")
    tools = checkout.parent / "tools"
    tools.mkdir()
    for program in ("bash", "basename", "cat", "dirname", "mktemp", "realpath", "rm", "sed", "sha256sum"):
        (tools / program).symlink_to(f"/usr/bin/{program}")
    assert "a C++ compiler is needed to build fairseq (on Debian: apt-get install g++)" in refusal(
        checkout, name, *words, PATH=tools
    )


def test_wheels_that_are_not_there_are_named_with_the_command_that_makes_them(checkout: Path) -> None:
    folder = checkout.parent / "wheels"
    expected = f"WHEELS={folder} has no wheel of amlp-fairseq: bash scripts/build_wheels.sh {folder}"
    assert refusal(checkout, "install.sh", WHEELS=folder) == expected
    folder.mkdir()
    for version in ("0.1.0", "0.2.0"):
        (folder / f"amlp_fairseq-{version}-py3-none-any.whl").write_bytes(b"")
    assert "more than one wheel of amlp-fairseq: amlp_fairseq-0.1.0" in refusal(checkout, "install.sh", WHEELS=folder)


def test_a_complete_environment_is_kept_until_something_else_is_wanted(checkout: Path) -> None:
    """PYTHON holds as the other settings do; a new wheel is installed; a folder that is gone is not missed."""
    wheels, venv = checkout.parent / "wheels", checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/amlp-fairseq").write_text("#!/bin/sh\n", encoding="utf-8")
    (venv / "bin/amlp-fairseq").chmod(0o755)
    wheels.mkdir()
    wheel = wheels / "amlp_fairseq-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"old")
    (venv / "settings").write_text(f"\n{wheels}\n{sys.executable}\n", encoding="utf-8")
    recipe = "cat setup.py pyproject.toml scripts/{install,venv}.sh scripts/fairseq.txt .venv/settings | sha256sum"
    with (venv / "recipe").open("wb") as file:
        subprocess.run(["bash", "-c", recipe], cwd=checkout, stdout=file, check=True)
    with (venv / "wheel").open("wb") as file:
        subprocess.run(["sha256sum", wheel], stdout=file, check=True)

    assert start(checkout, "install.sh").returncode == 0
    assert refusal(checkout, "install.sh", PYTHON="no-python").startswith("there is no no-python; set PYTHON to")
    wheel.write_bytes(b"new")
    (wheels / "amlp_fairseq-0.2.0-py3-none-any.whl").write_bytes(b"newer")
    assert "more than one wheel of amlp-fairseq" in refusal(checkout, "install.sh")
    for path in wheels.iterdir():
        path.unlink()
    assert start(checkout, "install.sh").returncode == 0


def test_build_wheels_wants_one_folder(checkout: Path) -> None:
    assert refusal(checkout, "build_wheels.sh").startswith("one folder is needed, got: nothing")
    assert refusal(checkout, "build_wheels.sh", "a", "b").startswith("one folder is needed, got: a b")
    assert refusal(checkout, "build_wheels.sh", "setup.py") == f"{checkout}/setup.py is not a folder"


def test_test_wants_files_that_exist(checkout: Path) -> None:
    for words in (["tests/none.py::test"], ["--full", "tests/none.py"]):
        assert refusal(checkout, "test.sh", *words) == f"there is no file {checkout}/tests/none.py"


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ([], ["-m", "not slow and not long"]),
        (["--full"], ["-m", "not long"]),
        (["setup.py"], ["-m", "not long", "setup.py"]),
        (["--", "-k", "a b"], ["-m", "not slow and not long", "-k", "a b"]),
    ],
)
def test_test_chooses_the_fast_tests_all_or_files(checkout: Path, words: list[str], chosen: list[str]) -> None:
    (checkout / "scripts/install.sh").write_text("", encoding="utf-8")
    programs = checkout / ".venv/bin"
    programs.mkdir(parents=True)
    for name in ("ruff", "mypy", "pytest"):
        (programs / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$0.words"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    assert start(checkout, "test.sh", *words).returncode == 0
    assert (programs / "pytest.words").read_text(encoding="utf-8").splitlines()[-len(chosen) :] == chosen


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        (os.environ["PATH"], "pip install --no-build-isolation fairseq-fixed=="),
        (
            "/nowhere",
            "there is no C++ compiler (g++) here to build it: install one, or a wheel that scripts/build_wheels",
        ),
    ],
)
def test_the_command_without_fairseq_ends_in_one_line(path: str, fix: str) -> None:
    program = "import sys; sys.modules['fairseq'] = None; from amlp_fairseq.cli.main import main; main()"
    words = (sys.executable, "-c", program, "options")
    done = commands.fresh(*words, cwd=commands.ROOT, env={"PATH": path}, check=False)
    assert done.returncode == 1
    [line] = done.stdout.splitlines()
    assert line.startswith("amlp-fairseq: amlp_fairseq needs fairseq, which is not installed: ")
    assert fix in line


def test_other_import_errors_keep_their_traceback() -> None:
    program = "import sys; sys.modules['yaml'] = None; from amlp_fairseq.cli.main import main; main()"
    done = commands.fresh(sys.executable, "-c", program, "options", cwd=commands.ROOT, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stdout
    assert "yaml" in done.stdout.splitlines()[-1]


def test_an_interrupt_while_the_command_is_imported_leaves_no_traceback() -> None:
    program = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'fairseq':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from amlp_fairseq.cli.main import main; main()"
    )
    done = commands.fresh(sys.executable, "-c", program, "options", cwd=commands.ROOT, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "")


def linted(*words: object) -> str:
    program, *rest = map(str, words)
    found = Path(sys.executable).with_name(program)
    done = subprocess.run([found, *rest], cwd=commands.ROOT, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_the_scripts_pass_shellcheck() -> None:
    assert linted("shellcheck", "--external-sources", "--source-path=.", *(f"scripts/{name}" for name in OWN)) == ""


def test_the_dockerfile_passes_hadolint() -> None:
    assert linted("hadolint", "Dockerfile") == ""


def test_the_dockerfile_agrees_with_the_scripts() -> None:
    docker = (commands.ROOT / "Dockerfile").read_text(encoding="utf-8")
    venv = (SCRIPTS / "venv.sh").read_text(encoding="utf-8")
    [torch] = re.findall(r"^torch=(.*)$", venv, flags=re.MULTILINE)
    [index] = re.findall(r"^index=\$\{TORCH_INDEX:-(.*)\}$", venv, flags=re.MULTILINE)
    assert f"ARG TORCH={torch}\n" in docker
    assert f"ARG TORCH_INDEX={index}\n" in docker
    assert f"pip install torch=={torch}\n" in (SCRIPTS / "build_wheels.sh").read_text(encoding="utf-8")
    assert re.findall(r"^ARG BASE=(.*)$", docker, flags=re.MULTILINE) == ["python:3.11.14-slim-bookworm"]
    assert re.findall(r"^USER (.*)$", docker, flags=re.MULTILINE) == ["1000"]
    # The last stage gets nothing but the wheels.
    assert re.findall(r"^COPY (.*)$", docker.rpartition("\nFROM ")[2], flags=re.MULTILINE) == [
        "--from=wheels /wheels /wheels"
    ]


def test_the_daemon_gets_all_that_the_wheels_are_made_of() -> None:
    ignored = (commands.ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    [copied] = re.findall(r'"\$root"/\{(.*)\}', (SCRIPTS / "build_wheels.sh").read_text(encoding="utf-8"))
    assert sent == {"scripts", *copied.split(",")}
    for name in sent:
        assert (commands.ROOT / name).exists()


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("ibdecoder", ["wmt14_en_de paper ibdecoder", "wmt14_en_fr paper ibdecoder"]),
        ("dynamicconv", ["wmt14_en_de paper dynamicconv", "wmt14_en_fr paper dynamicconv"]),
        ("aan", ["wmt14_en_de paper aan"]),
        ("amlp", ["wmt14_en_de paper amlp 3", "wmt14_de_en paper amlp 3"]),
    ],
)
def test_scripts_of_papers(name: str, runs: list[str], checkout: Path) -> None:
    """Each corpus at the paper's size on GPUs; at another scale the corpus of that name; options are handed on, and a
    run that fails is the last."""
    programs = checkout / ".venv/bin"
    programs.mkdir(parents=True)
    program = programs / "amlp-fairseq"
    program.write_text('#!/bin/sh\nprintf "<%s>" "$@"; echo\nexit "${STATUS:-0}"\n', encoding="utf-8")
    program.chmod(0o755)
    seeds = ["--seeds", "1", "2", "3"] if name == "dynamicconv" else []

    def printed(corpus: str, scale: str, table: str, *words: str) -> str:
        all_words = ["reproduce", "--corpus", corpus, "--scale", scale, "--table", table, *words]
        return "".join(f"<{word}>" for word in all_words)

    given = ["--dry-run", "--work", "a b"]
    expected = [printed(*run.split(" ", 2), "--device", "cuda", *seeds, *given) for run in runs]
    done = start(checkout, f"wmt14_{name}.sh", *given)
    assert (done.returncode, done.stdout.splitlines()) == (0, expected)
    table = runs[0].split(" ", 2)[2]
    for words in (["--scale", "embedded"], ["--scale=embedded"]):
        done = start(checkout, f"wmt14_{name}.sh", *words, "--seeds", "7")
        assert done.stdout.splitlines() == [printed("embedded", "embedded", table, "--seeds", "7")]
    failed = start(checkout, f"wmt14_{name}.sh", "--dry-run", STATUS=3)
    assert (failed.returncode, len(failed.stdout.splitlines())) == (3, 1)
    line = refusal(checkout, f"wmt14_{name}.sh", "--scale")
    assert line == "--scale needs a name"


@pytest.mark.long
@pytest.mark.parametrize("name", ["ibdecoder", "dynamicconv", "aan", "amlp"])
def test_a_papers_tables_from_the_first_command_to_the_last(name: str, tmp_path: Path) -> None:
    """With few updates, and once more as --dry-run prints it, in another folder. Models that have learned nothing write
    as many words as they have positions for: hardly more than the corpus' longest sentence has, which is 29."""
    script = commands.ROOT / f"scripts/wmt14_{name}.sh"
    words = ["--scale", "embedded", "--max-update", "4", "--max-tokens", "2000", "--max-target-positions", "32"]
    settings = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    settings["PYTHONPATH"] = str(commands.ROOT)

    def run(folder: str, *command: str) -> str:
        (tmp_path / folder).mkdir()
        done = subprocess.run(command, cwd=tmp_path / folder, env=settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    run("real", "bash", str(script), *words)
    plan = run("plan", "bash", str(script), *words, "--dry-run")
    run("printed", "bash", "-euc", plan)
    real, printed = (
        [
            {name: line.get(name) for name in ("system", "distilled", "split", "decoding", "bleu", "perplexity")}
            for line in read_results(tmp_path / folder / "work/embedded/results.jsonl")
        ]
        for folder in ("real", "printed")
    )
    assert real == printed
    tables = [
        (tmp_path / folder / "work/embedded/results.md").read_text(encoding="utf-8") for folder in ("real", "printed")
    ]
    assert tables[0] == tables[1]
    assert all(f"| {line['system']} --max-" in tables[0] for line in real)
