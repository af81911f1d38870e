"""Train as fairseq-train does, and write down the memory and the CPU time after updates.

    python -m benchmarks.sampled_training SAMPLES.jsonl EVERY [--stock] [--keep-all] [--bf16] [--largest] -- ARGUMENTS

ARGUMENTS are those of fairseq-train. A line for the first update, each EVERY-th and the last of an epoch: the update,
the epoch, CPU seconds of the process, its bytes now and at most so far. --stock: without the plugin. --keep-all: as the
plugin without its bounds. --bf16 sets what --bf16 sets, which stock fairseq-train takes for --tpu. --largest: every
batch is the largest one of the epoch.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any


def bytes_of_process(pid: int | str = "self") -> list[int]:
    """Bytes of a process now, and at most so far."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return [int(re.findall(rf"{name}:\s*(\d+) kB", status)[0]) << 10 for name in ("VmRSS", "VmHWM")]


def sample(trainer_class: Any, path: Path, every: int) -> None:
    """Let a trainer write its samples."""
    step = trainer_class.train_step

    def train_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = step(self, *args, **kwargs)
        update = self.get_num_updates()
        if update == 1 or update % every == 0:
            now, peak = bytes_of_process()
            facts = {"update": update, "epoch": self._sampled_epoch, "cpu_seconds": time.process_time()}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(facts | {"bytes": now, "peak_bytes": peak}) + "\n")
        return result

    begin_epoch = trainer_class.begin_epoch

    def begin(self: Any, epoch: int) -> None:
        self._sampled_epoch = epoch
        begin_epoch(self, epoch)

    trainer_class.train_step, trainer_class.begin_epoch = train_step, begin


def only_largest(dataset_class: Any) -> None:
    """Let every batch be the one with the most padded words: of the target, whose logits take most, then of the source,
    then with the longest sentences."""
    batches_of = dataset_class.batch_by_size

    def batch_by_size(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        batches = list(batches_of(self, *args, **kwargs))

        def size(batch: Any) -> tuple[int, ...]:
            source, target = (max(side) for side in zip(*map(self.size, batch), strict=True))
            return len(batch) * target, len(batch) * source, target

        return [max(batches, key=size)] * len(batches)

    dataset_class.batch_by_size = batch_by_size


def main() -> None:
    split = sys.argv.index("--")
    (samples, every, *switches), words = sys.argv[1:split], sys.argv[split + 1 :]
    from fairseq import options
    from fairseq.data import FairseqDataset
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.trainer import Trainer
    from fairseq_cli import train

    if "--stock" not in switches:
        import amlp_fairseq.plugin  # noqa: F401
        from amlp_fairseq.common.host_memory import CAPACITIES, FreedPieces
        from amlp_fairseq.ops.bernoulli import faster_bernoulli

        if "--keep-all" in switches:
            os.environ.update(dict.fromkeys(CAPACITIES, "1024"))
            FreedPieces.after_update = lambda self: None  # type: ignore[method-assign]
        faster_bernoulli().__enter__()  # as amlp-fairseq train
    sample(Trainer, Path(samples), int(every))
    if "--largest" in switches:
        only_largest(FairseqDataset)
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
    cfg.common.bf16 = "--bf16" in switches
    train.main(cfg)


if __name__ == "__main__":
    main()
