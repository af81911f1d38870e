"""Changes of ``fairseq.logging.progress_bar`` while a command of ``amlp-fairseq`` runs: updates of a whole training,
sentences of a decoding, how fast, and the time left.

On a terminal a line that is updated, by tqdm on standard error; in logs a line every ``--log-interval`` updates or
batches. fairseq's own bars count the batches of an epoch. ``--log-format json`` and ``none`` are fairseq's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging import progress_bar
from tqdm import tqdm

from amlp_fairseq.common.progress import SILENCE, counter, pace

#: Likewise, for the first line of a training.
FIRST_SILENCE = 10.0


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Within it, the bars that fairseq makes are those of this file."""
    training = Training()

    def bar(visible: bool, iterator: Collection[Any], epoch: int | None, prefix: str | None, interval: int) -> Any:
        if epoch is None or prefix is not None:
            return Sentences(visible, iterator, epoch, prefix, interval)
        return Updates(training, visible, iterator, epoch, prefix, interval)

    def on_terminal(iterator: Collection[Any], epoch: int | None, prefix: str | None) -> Any:
        return bar(True, iterator, epoch, prefix, 1)

    def in_log(iterator: Collection[Any], epoch: int | None, prefix: str | None, log_interval: int) -> Any:
        return bar(False, iterator, epoch, prefix, log_interval)

    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (
            (progress_bar, "TqdmProgressBar", on_terminal),
            (progress_bar, "SimpleProgressBar", in_log),
            (EpochBatchIterator, "next_epoch_itr", _with_number_of_sentences),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        stack.callback(training.close)
        yield


_next_epoch_itr = EpochBatchIterator.next_epoch_itr


def _with_number_of_sentences(
    self: Any, shuffle: bool = True, fix_batches_to_gpus: bool = False, set_dataset_epoch: bool = True
) -> Any:
    iterator = _next_epoch_itr(self, shuffle, fix_batches_to_gpus, set_dataset_epoch)
    if not shuffle:
        iterator.sentences = sum(map(len, self.frozen_batches[self.shard_id :: self.num_shards]))
    return iterator


class Sentences(progress_bar.SimpleProgressBar):  # type: ignore[misc]
    """Sentences of a set that are decoded or validated once.

    Args:
        visible: whether standard error is a terminal, and the bar is to be there.
        iterable: batches.
        epoch, prefix: of a training's validation.
        log_interval: batches from one line in the log to the next.
    """

    def __init__(
        self, visible: bool, iterable: Iterable[Any], epoch: int | None, prefix: str | None, log_interval: int
    ) -> None:
        super().__init__(iterable, epoch, prefix, log_interval)
        self.visible = visible
        self.counter = counter(
            visible, total=getattr(iterable, "sentences", None), desc=self.prefix or None, unit=" sentences"
        )

    def __iter__(self) -> Iterator[Any]:
        said = time.monotonic()
        with self.counter as bar:
            for number, batch in enumerate(self.iterable, 1):
                yield batch
                bar.update(batch.get("nsentences", len(batch.get("id", ()))))
                now = time.monotonic()
                if not self.visible and (number % self.log_interval == 0 or now - said >= SILENCE):
                    said = now
                    prefix = f"{self.prefix}: " if self.prefix else ""
                    progress_bar.logger.info(prefix + ", ".join(pace(bar, "sentences")))

    def log(self, stats: Mapping[str, object], tag: str | None = None, step: int | None = None) -> None:
        """Nothing: what fairseq says here is the words per second."""


class Training:
    """Progress of a training, over its epochs."""

    def __init__(self) -> None:
        self.counter: tqdm[Any] | None = None
        self.said, self.silence = time.monotonic(), FIRST_SILENCE

    def begin(self, visible: bool, done: int) -> tqdm[Any]:
        """The counter of all epochs, which in the first of them has ``done`` updates before it."""
        if self.counter is None:
            self.counter = counter(visible, initial=done, unit=" updates")
        return self.counter

    def says(self) -> None:
        """There is a line in the log."""
        self.said, self.silence = time.monotonic(), SILENCE

    def is_due(self) -> bool:
        return time.monotonic() - self.said >= self.silence

    def close(self) -> None:
        if self.counter is not None:
            self.counter.close()


class Updates(progress_bar.SimpleProgressBar):  # type: ignore[misc]
    """An epoch of a training.

    Args:
        training: what all its epochs have in common.
        visible: whether standard error is a terminal, and the bar is to be there.
        iterable: the batches of each update.
        epoch, prefix: the number of the epoch; None.
        log_interval: updates from one line in the log to the next.
    """

    def __init__(
        self,
        training: Training,
        visible: bool,
        iterable: Collection[Any],
        epoch: int,
        prefix: str | None,
        log_interval: int,
    ) -> None:
        super().__init__(iterable, epoch, prefix, log_interval)
        self.visible, self.training = visible, training
        self.counter = training.begin(visible, (epoch - 1) * len(iterable) + self.n)

    def update_config(self, config: dict[str, Any]) -> None:
        """Take the end of the training from its configuration."""
        limits = config["optimization"]
        ends = [limits["max_update"], limits["max_epoch"] * len(self.iterable)]
        self.counter.total = min((end for end in ends if end), default=None)

    def __iter__(self) -> Iterator[Any]:
        self.counter.set_description(self.prefix, refresh=False)
        if not self.visible and self.counter.n == self.counter.initial:
            total = f" of {self.counter.total}" if self.counter.total else ""
            progress_bar.logger.info(f"{self.prefix}: begins with update {self.counter.n + 1}{total}")
        for batches in self.iterable:
            yield batches
            self.counter.update()
            if not self.visible and self.training.is_due():
                self.training.says()
                progress_bar.logger.info(f"{self.prefix}: {', '.join(pace(self.counter, 'updates'))}")

    def log(self, stats: Mapping[str, object], tag: str | None = None, step: int | None = None) -> None:
        """The loss; in a log with the updates that have been made, how fast, and the time left."""
        loss = {name: value for name, value in self._format_stats(stats).items() if name == "loss"}
        self.counter.n = step or self.counter.n + 1  # updates that overflow do not count
        if self.visible:
            self.counter.set_postfix(loss, refresh=False)
        else:
            parts = [*pace(self.counter, "updates"), *(f"{name} {value}" for name, value in loss.items())]
            self.training.says()
            with progress_bar.rename_logger(progress_bar.logger, tag):
                progress_bar.logger.info(f"{self.prefix}: {', '.join(parts)}")
        self.counter.n -= 1  # it is counted when the next one begins

    def print(self, stats: Mapping[str, object], tag: str | None = None, step: int | None = None) -> None:
        """The epoch's statistics, as fairseq has them."""
        self.counter.n = step or self.counter.n
        super().print(stats, tag, step)
