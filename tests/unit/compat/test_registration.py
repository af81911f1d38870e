"""The plugin registers everything, however it gets imported, and importing it does nothing else."""

from __future__ import annotations

import json
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


def test_user_dir_is_the_checkout(corpus: Path, tmp_path: Path) -> None:
    output = commands.fresh(
        sys.executable, "-c", TRAIN_AND_TELL, *training(corpus, commands.PLUGIN), cwd=tmp_path
    ).stdout
    assert "IBDecoderModel" in output
    assert "done training" in output
    assert Path(output.split("PLUGIN ")[1].strip()) == commands.PLUGIN / "__init__.py"


def test_user_dir_after_import(corpus: Path) -> None:
    """fairseq does not scan a package that is imported already, as it is in the processes of these commands."""
    output = commands.run("fairseq_cli.train", *training(corpus, commands.PLUGIN))
    assert "has already been imported" in output
    assert "IBDecoderModel" in output
    assert "done training" in output


def test_fairseqs_syntax_is_not_warned_of() -> None:
    files = "(fairseq.__file__, 'train.py')"
    program = f"import amlp_fairseq.plugin, fairseq; [compile('1 is 1', name, 'exec') for name in {files}]"
    output = commands.fresh(sys.executable, "-c", program).stdout
    assert [line.split(":")[0] for line in output.splitlines() if "SyntaxWarning" in line] == ["train.py"]


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
