"""The systems of benchmarks/efficiency.py: what it makes of a model folder, and the command that translates lines.

A new system is a class, and a line in SYSTEMS.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch

from amlp_fairseq.model_folder.config import WEIGHTS, read_config
from amlp_fairseq.model_folder.format import read_checkpoint
from amlp_fairseq.ops.generation_order import GenerationOrder
from amlp_fairseq.text.subwords import MODELS

AMLP = (sys.executable, "-m", "amlp_fairseq")
#: The decoding options of a folder that all systems have.
DECODING = {"beam", "lenpen"}


@dataclass(frozen=True)
class Setting:
    """Precision, search and batches of a translation.

    Attributes:
        precision: of weights and products.
        number: the beam; of iterative refinement the decoder calls.
        cores: how many CPUs, with a thread each.
        batch: source pieces of a batch; None: each line as soon as it comes.
        workers: batches at the same time; they share the cores.
    """

    precision: str
    number: int
    cores: int
    batch: int | None = None
    workers: int = 1


class LineSystem(ABC):
    """A program that translates the lines of its standard input with a model.

    Args:
        folder: of the model, made by amlp-fairseq package.
        scratch: a new folder for what the program needs in another form.
        helper: the folder of a model that drafts for an autoregressive one, or reranks the hypotheses of another;
            None: none does.
    """

    PRECISIONS: ClassVar[tuple[str, ...]] = ("float32", "int8")

    def __init__(self, folder: Path, scratch: Path, helper: Path | None = None) -> None:
        self.folder, self.scratch, self.helper, self.config = folder, scratch, helper, read_config(folder)

    @property
    def iterative(self) -> bool:
        """True if the number of a setting is its decoder calls; otherwise it is the beam."""
        return bool(self.config["task"]["_name"] == "translation_cmlmc")

    @property
    def autoregressive(self) -> bool:
        """True if the model writes one word a call, from left to right."""
        order = self.config["task_state"].get("interleaving")
        return not self.iterative and (order is None or GenerationOrder(**order).left_to_right)

    def lacks(self) -> str | None:
        """The reason why the program cannot translate with this model; None if it can."""
        return None

    def numbers(self, beams: list[int], iterations: list[int]) -> list[int]:
        """The beams or decoder calls to run of those asked for: drafts need greedy search, reranking a larger beam."""
        if self.iterative:
            return iterations
        if self.helper is None:
            return beams
        return [1] if self.autoregressive else [beam for beam in beams if beam > 1]

    def prepare(self, precision: str) -> Path:
        """The file or folder that the program loads; made if it is not there."""
        return self.folder

    def size(self, precision: str) -> int:
        """Bytes on disk of what it loads."""
        loaded = self.prepare(precision)
        folder = loaded if loaded.is_dir() else self.folder
        return sum(file.stat().st_size for file in folder.iterdir())

    @abstractmethod
    def command(self, setting: Setting) -> list[str]: ...

    def workers(self, cores: int) -> tuple[int, ...]:
        """The numbers of workers that are worth trying on so many cores."""
        return (1,)

    def translation(self, line: str) -> str | None:
        """The translation that a line of the output holds; None if it holds none."""
        return line


class Plugin(LineSystem):
    """``amlp-fairseq translate``."""

    def size(self, precision: str) -> int:
        helping = self.helper.iterdir() if self.helper else ()
        return super().size(precision) + sum(file.stat().st_size for file in helping)

    def command(self, setting: Setting) -> list[str]:
        decoding = ("--iter-decode-max-iter", setting.number - 1) if self.iterative else ("--beam", setting.number)
        words = [*AMLP, "translate", "--model", self.folder, "--decode-dtype", setting.precision, *decoding]
        words += ["--no-split-sentences"]  # the other systems read a line as a whole
        if self.helper:
            words += ["--draft-path" if self.autoregressive else "--rescore-path", self.helper]
        if setting.batch is None:
            words += ["--buffer-size", 1]
        else:
            words += ["--buffer-size", 1_000_000, "--max-tokens", setting.batch]
        return list(map(str, words))


class PluginInPyTorch(Plugin):
    """The same without the operators of ``amlp-fairseq compile``."""

    def command(self, setting: Setting) -> list[str]:
        return ["env", "AMLP_FAIRSEQ_BACKEND=torch", *super().command(setting)]


class Transformer(LineSystem):
    """A system that has autoregressive Transformers alone, and sentencepiece for the text."""

    def lacks(self) -> str | None:
        config = self.config
        if self.helper:
            return "it has no models that help others"
        attentions = {value for name, value in config["model"].items() if name.endswith("_attention_type")}
        if config["model"]["_name"] not in ("transformer", "plugin_transformer") or attentions - {None, "softmax"}:
            return "it has autoregressive Transformers only"
        if config["text"]["post_process"] != "sentencepiece" or config["text"].get("tokenizer"):
            return "the benchmark runs it with sentencepiece and without a tokenizer only"
        if others := config["decoding"].keys() - DECODING:
            return f"the benchmark does not set its {', '.join(sorted(others))}"
        return None

    @property
    def length_penalty(self) -> str:
        return str(self.config["decoding"].get("lenpen", 1))


class CTranslate2(Transformer):
    """CTranslate2, of ``amlp-fairseq export``, after a program that cuts text up: ctranslate2_lines.py."""

    def lacks(self) -> str | None:
        return super().lacks() or (None if find_spec("ctranslate2") else "ctranslate2 is not installed")

    def prepare(self, precision: str) -> Path:
        out = self.scratch / precision
        if not out.exists():
            stored = [] if precision == "float32" else ["--quantization", precision]
            command = [*AMLP, "export", "--model", str(self.folder), "--out", str(out), *stored]
            subprocess.run(command, check=True, capture_output=True, text=True)
        return out

    def command(self, setting: Setting) -> list[str]:
        script = Path(__file__).with_name("ctranslate2_lines.py")
        words = [sys.executable, script, self.prepare(setting.precision), "--precision", setting.precision]
        words += ["--beam", setting.number, "--lenpen", self.length_penalty, "--workers", setting.workers]
        words += ["--threads", setting.cores // setting.workers]
        words += [] if setting.batch is None else ["--batch-tokens", setting.batch]
        return list(map(str, words))

    def workers(self, cores: int) -> tuple[int, ...]:
        """With small models it is faster with a worker on each core."""
        return (1, cores) if cores > 1 else (1,)


class Fairseq(Transformer):
    """Stock ``fairseq-interactive``, which knows nothing of the plugin, with the folder's weights as a checkpoint."""

    PRECISIONS: ClassVar[tuple[str, ...]] = ("float32",)

    def prepare(self, precision: str) -> Path:
        out = self.scratch / f"{precision}.pt"
        if not out.exists():
            state = read_checkpoint(self.folder)
            model = argparse.Namespace(**self.config["model"] | {"_name": "transformer"})
            state["cfg"] = {"model": model, "task": {"_name": "translation"}}
            torch.save(state, out)
        return out

    def size(self, precision: str) -> int:
        """The checkpoint in place of the folder's weights."""
        checkpoint, weights = self.prepare(precision), self.folder / WEIGHTS
        return super().size(precision) + checkpoint.stat().st_size - weights.stat().st_size

    def command(self, setting: Setting) -> list[str]:
        source, target = self.config["languages"]
        subwords = self.folder / MODELS["sentencepiece"]
        words: list[Any] = [sys.executable, "-m", "fairseq_cli.interactive", self.folder, "--cpu"]
        words += ["--task", "translation", "--path", self.prepare(setting.precision), "-s", source, "-t", target]
        words += ["--bpe", "sentencepiece", "--sentencepiece-model", subwords]
        words += ["--beam", setting.number, "--lenpen", self.length_penalty]
        if setting.batch is None:
            words += ["--buffer-size", 1, "--batch-size", 1]
        else:
            words += ["--buffer-size", 1_000_000, "--max-tokens", setting.batch]
        return list(map(str, words))

    def translation(self, line: str) -> str | None:
        return line.split("\t", 2)[2] if line.startswith("D-") else None


SYSTEMS: dict[str, type[LineSystem]] = {
    "amlp-fairseq": Plugin,
    "ctranslate2": CTranslate2,
    "fairseq": Fairseq,
    "amlp-fairseq-pytorch": PluginInPyTorch,
}
#: Those that are run unless others are asked for.
USUAL = ("amlp-fairseq", "ctranslate2", "fairseq")
