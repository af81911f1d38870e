"""The plugin registers everything, however it gets imported, and importing it does nothing else."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from amlp_fairseq.compat.registration import register_model, register_task
from amlp_fairseq.models.interleaved_decoder import IBDecoderConfig
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig

pytestmark = pytest.mark.slow

ARCHITECTURES = [
    *(
        f"{model}{size}"
        for model in ("ibdecoder", "aan_transformer")
        for size in ("", "_iwslt_de_en", "_tiny", "_wmt_en_de", "_wmt_en_de_big")
    ),
    *(
        f"triton_{conv}{size}"
        for conv in ("lightconv", "dynamicconv")
        for size in " _tiny _iwslt_de_en _wmt_en_de _wmt_en_de_big _wmt_en_fr_big _wmt_zh_en_big _lm _lm_gbw".split(" ")
    ),
]
# Prints which file the plugin came from once training is over.
TRAIN_AND_TELL = (
    "import sys; from fairseq_cli.train import cli_main; cli_main(); "
    "print('PLUGIN', sys.modules['amlp_fairseq'].__file__)"
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few sentences that ``--dataset-impl raw`` reads."""
    folder = tmp_path_factory.mktemp("corpus")
    for language in ("src", "tgt"):
        (folder / f"dict.{language}.txt").write_text("".join(f"w{i} 1\n" for i in range(10)))
        (folder / f"train.src-tgt.{language}").write_text("w1 w2 w3\nw4 w5\nw6 w7 w8 w9\n")
    return folder


def training(corpus: Path, plugin: Path) -> list[str]:
    """Options of one update."""
    return [
        *(str(corpus), "-s", "src", "-t", "tgt", "--dataset-impl", "raw", "--num-workers", "0", "--max-tokens", "100"),
        *("--user-dir", str(plugin), "--task", "translation_interleaved", "--arch", "ibdecoder_tiny"),
        *("--max-update", "1", "--lr", "0.001", "--no-save", "--disable-validation", *commands.TRAINING),
    ]


def imported_from(output: str) -> Path:
    assert "IBDecoderModel" in output
    assert "done training" in output
    return Path(output.split("PLUGIN ")[1].strip())


def test_user_dir_is_the_checkout(corpus: Path, tmp_path: Path) -> None:
    output = commands.fresh(
        sys.executable, "-c", TRAIN_AND_TELL, *training(corpus, commands.PLUGIN), cwd=tmp_path
    ).stdout
    assert imported_from(output) == commands.PLUGIN / "__init__.py"


def test_user_dir_is_an_installed_copy(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, installed = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):  # pip leaves traces in the folder it builds
        shutil.copy(commands.ROOT / name, source)
    for name in ("amlp_fairseq", "configs"):
        shutil.copytree(commands.ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("AMLP_FAIRSEQ_ISA", "generic")  # one library of the engine: all take minutes
    pip = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--no-compile")
    commands.fresh(*pip, "--no-deps", "--no-build-isolation", "--target", installed, source)

    # The environment of the tests has an editable install, which must not win.
    monkeypatch.setenv("PYTHONPATH", str(installed))
    plugin = installed / "amlp_fairseq"
    output = commands.fresh(sys.executable, "-c", TRAIN_AND_TELL, *training(corpus, plugin), cwd=tmp_path).stdout
    assert imported_from(output) == plugin / "__init__.py"

    # The configurations are installed with it.
    words = ["train", corpus, "--row", "ibdecoder", "--scale", "embedded", "--corpus", "embedded", "--print"]
    shown = commands.fresh(sys.executable, "-m", "amlp_fairseq", *words, cwd=tmp_path).stdout
    assert f"--user-dir {plugin} --task translation_interleaved" in shown
    assert "--max-update 500" in shown


def test_user_dir_after_import(corpus: Path, tmp_path: Path) -> None:
    """fairseq does not scan a package that is imported already."""
    program = f"import amlp_fairseq.plugin; {TRAIN_AND_TELL}"
    output = commands.fresh(sys.executable, "-c", program, *training(corpus, commands.PLUGIN), cwd=tmp_path).stdout
    assert "has already been imported" in output
    assert imported_from(output) == commands.PLUGIN / "__init__.py"


@pytest.mark.parametrize(("file", "warned"), [("fairseq.__file__", False), ("'train.py'", True)])
def test_fairseqs_syntax_is_not_warned_of(file: str, warned: bool) -> None:
    program = f"import amlp_fairseq.plugin, fairseq; compile('1 is 1', {file}, 'exec')"
    assert ("SyntaxWarning" in commands.fresh(sys.executable, "-c", program).stdout) == warned


def test_importing_registers_everything_and_does_nothing_else(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, sys, torch\n"
        "cuda_calls = []\n"
        "def forbidden(*args):\n"
        "    cuda_calls.append(args)\n"
        "    raise RuntimeError('CUDA')\n"
        "torch.cuda.init = torch.cuda._lazy_init = forbidden\n"
        "import amlp_fairseq.plugin\n"
        "from fairseq.models import ARCH_MODEL_REGISTRY\n"
        "from fairseq.tasks import TASK_REGISTRY\n"
        "ours = lambda registry: sorted(n for n, c in registry.items() if c.__module__.startswith('amlp_fairseq.'))\n"
        "facts = {'cuda': [torch.cuda.is_initialized(), cuda_calls], 'tasks': ours(TASK_REGISTRY),\n"
        "         'architectures': ours(ARCH_MODEL_REGISTRY)}\n"
        f"json.dump(facts, open({str(tmp_path / 'facts.json')!r}, 'w'))\n"
    )
    assert commands.fresh(sys.executable, plugin).stdout == ""  # and standard error
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["cuda"] == [False, []]
    assert "translation_interleaved" in facts["tasks"]
    assert set(ARCHITECTURES) <= set(facts["architectures"])


@pytest.mark.parametrize(
    ("register", "dataclass", "name", "owner"),
    [
        (
            register_model,
            IBDecoderConfig,
            "transformer",
            "fairseq.models.transformer.transformer_legacy.TransformerModel",
        ),
        (register_model, IBDecoderConfig, "ibdecoder", "amlp_fairseq.models.interleaved_decoder.IBDecoderModel"),
        (register_task, TranslationInterleavedConfig, "translation", "fairseq.tasks.translation.TranslationTask"),
        (
            register_task,
            TranslationInterleavedConfig,
            "translation_interleaved",
            "amlp_fairseq.tasks.translation_interleaved.TranslationInterleavedTask",
        ),
    ],
)
def test_a_taken_name_is_refused(register: Callable[..., object], dataclass: type, name: str, owner: str) -> None:
    before = MODEL_REGISTRY.get(name), TASK_REGISTRY.get(name)
    with pytest.raises(ValueError, match=rf"name '{name}' is taken by {owner}$"):
        register(name, dataclass=dataclass)
    assert (MODEL_REGISTRY.get(name), TASK_REGISTRY.get(name)) == before
