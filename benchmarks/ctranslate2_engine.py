"""CTranslate2 as an engine of benchmarks/decoding.py."""

import copy
import json
import os
import subprocess
import sys
import tempfile
import weakref
from argparse import Namespace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.engines import Batch, Engine, TimedCall
from benchmarks.harness import seconds


class CTranslate(Engine):
    """CTranslate2, with the weights of a stock Transformer, in another process.

    With forced lengths it writes one word more than the others and no end symbol, because CTranslate2 stops at the
    maximum length without one; so it makes as many decoder calls as the others.
    """

    PRECISIONS: ClassVar = {"cpu": ("float32", "int8"), "cuda": ("float32", "float16", "int8")}
    EXACT_BEAMS = (1,)  # with forced lengths its beam search ends with another word

    def __init__(self, model: Any, task: Any, precision: str, args: Namespace, forced: bool) -> None:
        super().__init__(model, task, precision, args, forced)
        with tempfile.TemporaryDirectory() as folder:
            from amlp_fairseq.translator.ctranslate2_model import convert  # needs ctranslate2

            convert(copy.deepcopy(model).cpu(), task, Path(folder, "model"))
            workers = [Worker(f"{folder}/model", args.device, precision, count) for count in {1, args.threads}]
        sources = [[task.source_dictionary[task.source_dictionary.nspecial]] * 20]
        trial = json.dumps([sources, {"min_decoding_length": 20, "max_decoding_length": 20}])
        #: The worker with the fastest number of threads: int8 may be slower with two than with one.
        self.worker = min(workers, key=lambda worker: min(seconds(partial(worker.ask, trial), "cpu") for _ in range(5)))

    @classmethod
    def lacks(cls, precision: str, device: str) -> str | None:
        if find_spec("ctranslate2") is None:
            return "ctranslate2 is not installed"
        import ctranslate2

        if device == "cuda" and ctranslate2.get_cuda_device_count() == 0:
            return "this ctranslate2 sees no CUDA device"
        if precision not in ctranslate2.get_supported_compute_types(device):
            return f"ctranslate2 has no {precision} on this device"
        return None

    def call(self, batch: Batch, number: int) -> TimedCall:
        words = self.task.source_dictionary
        sources = [[words[word] for word in source] for source in batch.sources]
        limits = {"max_decoding_length": 201}  # 200 words and the end symbol, fairseq's default
        if self.forced:
            limits = dict.fromkeys(("min_decoding_length", "max_decoding_length"), batch.length + 1)
        request = json.dumps([sources, {"beam_size": number, "return_end_token": True, **limits}])

        return partial(self.worker.ask, request)

    def read(self, result: Any) -> list[list[int]]:
        words = self.task.target_dictionary
        return [[words.index(token) for token in sentence] for sentence in result]

    def watch(self, run: TimedCall) -> tuple[Any, int]:
        result = run()
        return result, max(map(len, result))


class Process:
    """A Python script that says when it is ready and then answers lines of JSON; it ends with this object."""

    def __init__(self, script: str, *arguments: str, **environment: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **environment}, **pipes)
        weakref.finalize(self, self.process.communicate)
        if self._answer() != "ready\n":
            raise RuntimeError(f"{' '.join(command)}: ended before it was ready")

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, request: str) -> list[list[str]]:
        """The pieces of the best outputs."""
        print(request, file=self.process.stdin, flush=True)
        return list(json.loads(self._answer()))


class Worker(Process):
    """A process of ctranslate2_worker.py."""

    def __init__(self, model: str, device: str, precision: str, threads: int) -> None:
        self.threads = threads
        super().__init__("ctranslate2_worker.py", model, device, precision, str(threads))
