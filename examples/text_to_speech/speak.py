"""Train Transformer-TTS and FastSpeech 2 with different attentions, let them speak, and print the distortions beside
Table 2 of the AMLP paper.

    python examples/text_to_speech/speak.py [DATA] [--results FILE.jsonl] [-- options of fairseq-train]
    python examples/text_to_speech/speak.py [DATA] --row fastspeech2_amlp --inner-dim 4 8 16 32   # Figure 3

DATA is a folder of prepare.py. Without it the utterances are synthetic ones, and the models are of a size that takes
minutes on one thread. For the paper's table: --scale paper. Options of fairseq-train win over the scale's. A row that
the file of results has already is not trained again; a training that was stopped continues.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import logging
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import distortion
import numpy as np
import prepare
import soundfile
import torch
import torch.nn.functional as F
from distortion_table import INNER_DIM, TABLE, by_inner_dim, comparison
from fairseq import checkpoint_utils, utils
from tones import write_tones
from torch import Tensor

from amlp_fairseq.common.arguments import Parser, positive
from amlp_fairseq.common.exit_handling import clear_endings
from amlp_fairseq.common.files import sha256
from amlp_fairseq.common.user_errors import one_line_errors
from amlp_fairseq.training.config import flags
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.results import run_missing

#: Iterations of Griffin and Lim's algorithm.
ITERATIONS = 32
#: How often the writing of an utterance's spectrogram is timed; the median counts.
TIMED = 5
#: Griffin and Lim's algorithm needs more frames than the half of a window has.
LEAST_FRAMES = prepare.WINDOW // prepare.HOP


def command(data: Path, row: str, scale: str, seed: int, save_dir: Path, rest: list[str]) -> list[str]:
    """The options of ``amlp-fairseq train`` for a row."""
    attentions = TABLE["rows"][row]
    arch, settings = attentions["arch"], TABLE["scales"][scale]
    values = {
        "task": "text_to_speech",
        "arch": arch,
        "criterion": TABLE["losses"][arch],
        "train-subset": "train",
        "valid-subset": "dev",
        "required-batch-size-multiple": 1,  # otherwise fairseq drops utterances
        "no-epoch-checkpoints": True,
        "seed": seed,
        "save-dir": str(save_dir),
        **{f"{kind}-attention-type": name for kind, name in attentions.items() if kind.endswith(("self", "cross"))},
        **settings["all"],
        **settings[arch],
    }
    return [str(data), *flags(values, row), *rest]


def train(words: list[str]) -> None:
    """Train a model in a process of its own.

    Raises:
        ChildProcessError: if it fails; it has said why.
    """
    status = subprocess.call([sys.executable, "-m", "amlp_fairseq", "train", *words])
    if status != 0:
        raise ChildProcessError(f"the training ended with status {status}")


def train_and_score(words: list[str], data: Path, subset: str, save_dir: Path) -> dict[str, Any]:
    """The scores of a training's best checkpoint, and where they were measured."""
    train(words)
    return {**score(save_dir / "checkpoint_best.pt", data, subset, save_dir / subset), **environment()}


def score(checkpoint: Path, data: Path, subset: str, wavs: Path) -> dict[str, Any]:
    """Let a model speak the utterances of a set, and compare them with the recordings' spectrograms, spoken by the same
    vocoder. Both go to ``wavs``.

    Returns:
        ``mcd`` and ``msd`` per pair of frames that time warping aligns, over all utterances; the same for
        ``mean_frame_…``, the mean frame repeated as often as the recording has frames; ``length``, the number of frames
        as a share of the recordings'; ``frames_per_second`` of one utterance at a time, without the vocoder;
        ``parameters``.
    """
    overrides = {"data": str(data), "spec_bwd_max_iter": ITERATIONS, "vocoder": "griffin_lim"}
    (model,), config, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], arg_overrides=overrides)
    if torch.cuda.is_available():
        model.cuda()
    task.load_dataset(subset)
    dataset = task.dataset(subset)
    generator = task.build_generator([model], config.task)
    vocoder = generator.vocoder

    def spoken(features: Tensor) -> Tensor:
        """The waveform (n,) of a log mel spectrogram (T, 80), with silence after one that is too short."""
        silence = max(0, LEAST_FRAMES - len(features))
        waveform: Tensor = vocoder(F.pad(features, (0, 0, 0, silence), value=float(np.log(prepare.FLOOR))))
        return waveform

    generator.vocoder = spoken
    seconds = 0.0

    def timed(sample: Any) -> float:
        """Seconds for an utterance's spectrogram."""
        start = now()
        generator.generate(model, sample)
        return now() - start

    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
    wavs.mkdir(parents=True, exist_ok=True)
    for index, item in enumerate(dataset):
        np.random.seed(1)  # fairseq's vocoder draws the first phases
        sample = dataset.collater([item])  # alone: in a batch both models see padding
        sample = utils.move_to_cuda(sample) if torch.cuda.is_available() else sample
        (result,) = generator.generate(model, sample, has_targ=True)
        recorded, feature = result["targ_feature"], result["feature"]
        mean_frame = generator.gcmvn_denormalize(torch.zeros_like(recorded)[None])[0]
        waveforms = {"": result["waveform"], "mean_frame_": spoken(mean_frame)}
        reference = result["targ_waveform"].cpu().numpy()
        for prefix, waveform in waveforms.items():
            for kind, pair in distortion.distortions(reference, waveform.cpu().numpy(), task.sr).items():
                sums[prefix + kind] += pair
        sums["length"] += len(feature), len(recorded)
        for name, waveform in (("recorded", reference), ("spoken", result["waveform"].cpu().numpy())):
            soundfile.write(wavs / f"{dataset.ids[index]}.{name}.wav", waveform, task.sr)
        generator.vocoder = lambda features: features
        seconds += statistics.median(timed(sample) for _ in range(TIMED))
        generator.vocoder = spoken
    means = {name: float(total / count) for name, (total, count) in sums.items()}
    speed = float(sums["length"][0]) / seconds
    size = sum(parameter.numel() for parameter in model.parameters())
    return {**means, "frames_per_second": speed, "parameters": size}


def now() -> float:
    """The clock, when the device has done all that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The command line, and the words after ``--``."""
    parser = Parser(
        prog="speak.py",
        usage="speak.py [DATA] [options] [-- options of fairseq-train]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("data", type=Path, nargs="?", metavar="DATA", help="folder of prepare.py")
    parser.add_argument("--scale", choices=list(TABLE["scales"]), default="reduced", help="sizes and settings")
    rows = list(TABLE["rows"])
    parser.add_argument(
        "--row", choices=rows, nargs="+", default=rows, metavar="ROW", help=f"rows (default: all: {' '.join(rows)})"
    )
    parser.add_argument(
        "--inner-dim",
        type=positive,
        nargs="+",
        metavar="C",
        help="train the rows with each of these c of AMLP and ABC, and print MCD and speed for each (Figure 3)",
    )
    parser.add_argument("--seed", type=positive, nargs="+", default=[1], help="a training for each (default: 1)")
    parser.add_argument("--subset", default="test", help="set to speak (default: test)")
    parser.add_argument("--results", type=Path, metavar="FILE.jsonl", help="append a line for each row to this file")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("work/text_to_speech"),
        help="checkpoints and what was spoken (default: %(default)s)",
    )
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    return parser.parse_args(words[:end]), words[end + 1 :]


def uses_inner_dim(row: str) -> bool:
    """True if one of the row's attentions has c."""
    return any(name in ("abc", "amlp_cov") for name in TABLE["rows"][row].values())


def check(data: Path, rows: list[str], subset: str) -> None:
    """Find mistakes before the first training.

    Raises:
        FileNotFoundError: if the data or the set is not there.
        ValueError: if a row needs durations that the data do not have.
    """
    for name in ("train", "dev", subset):
        header = (data / f"{name}.tsv").read_text(encoding="utf-8").split("\n", 1)[0].split("\t")
        for row in rows:
            if TABLE["rows"][row]["arch"] == "plugin_fastspeech2" and "duration" not in header:
                raise ValueError(f"--row {row} needs durations, which {data} does not have: prepare.py --alignments")


def checksum(data: Path, *subsets: str) -> str:
    """The first 16 hexadecimal digits of a checksum of the training set's statistics and the manifests of some sets."""
    files = [data / "gcmvn_stats.npz", *(data / f"{subset}.tsv" for subset in subsets)]
    return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()[:16]


def main() -> None:
    with one_line_errors("speak.py"), clear_endings("speak.py"):
        args, rest = arguments()
        data = args.data
        if data is None:
            data = args.work / "tones"
            if not (data / "config.yaml").exists():
                write_tones(args.work / "tones-recorded")
                prepare.prepare(args.work / "tones-recorded", data, args.work / "tones-recorded/alignments")
        check(data, args.row, args.subset)
        learned, spoken = checksum(data, "train", "dev"), checksum(data, "train", "dev", args.subset)
        dims = [[]] if args.inner_dim is None else [[INNER_DIM, str(c)] for c in args.inner_dim]
        runs = []
        for row, seed, dim in itertools.product(args.row, args.seed, dims):
            options = [*rest, *dim] if uses_inner_dim(row) else rest
            identity = {
                **{"row": row, "scale": args.scale, "seed": seed, "options": options},
                **{"data": data.name, "data_sha256": spoken, "subset": args.subset},
            }
            words = [data.name, learned, args.scale, row, str(seed), *options]
            save_dir = args.work / re.sub(r"\W+", "-", "-".join(words))
            training = command(data, row, args.scale, seed, save_dir, options)
            runs.append((identity, partial(train_and_score, training, data, args.subset, save_dir)))
        lines = run_missing(args.results, runs)
        print(comparison(lines) if args.inner_dim is None else by_inner_dim(lines))


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.WARNING)
    main()
