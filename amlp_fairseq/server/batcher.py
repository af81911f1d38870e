"""Batches the texts of many requests, for the one thread that uses the model."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from amlp_fairseq.text.sentences import TooLong
from amlp_fairseq.translator.translator import Translation, Translator

#: Seconds that a text waits for its batch to fill.
WAIT = 0.002
#: Characters, about a sentence, for each of which a longer text counts as one more text.
CHARACTERS = 200


class Full(Exception):
    """The maximum number of requests is waiting."""


@dataclass(eq=False)
class _Request:
    """A request; ``translations`` has the translations of its first texts."""

    texts: Sequence[str]
    languages: tuple[str, str]
    future: Future[list[Translation]] = field(default_factory=Future)
    translations: list[Translation] = field(default_factory=list)


class Batcher:
    """A queue and its thread, which runs inside ``with``. Requests take turns: a request with more texts than a batch
    returns to the end of the queue.

    Args:
        translator: used by no other thread meanwhile.
        max_batch: maximum number of texts that are translated together; long texts count as several, but every batch
            has at least one.
        max_waiting: maximum number of unanswered requests.
    """

    def __init__(self, translator: Translator, max_batch: int, max_waiting: int) -> None:
        self.translator, self.max_batch, self.max_waiting = translator, max_batch, max_waiting
        self._unfinished: set[Future[list[Translation]]] = set()
        self._queue: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        # Daemon thread: the program may exit while an abandoned batch is still being translated.
        self._thread = threading.Thread(target=self._work, name="translator", daemon=True)

    def __enter__(self) -> Batcher:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """The number of unanswered requests."""
        return len(self._unfinished)

    def submit(self, texts: Sequence[str], languages: tuple[str, str]) -> Future[list[Translation]]:
        """Submit a request in two languages, which can be cancelled. The future raises ``TooLong`` with the number of
        the text, from 1, or the model's exception.

        Raises:
            Full: if ``max_waiting`` requests are waiting.
        """
        request = _Request(texts, languages)
        with self._changed:
            if len(self._unfinished) >= self.max_waiting:
                raise Full(f"{self.max_waiting} requests are waiting")
            self._unfinished.add(request.future)
            self._queue.append(request)
            self._changed.notify_all()
        request.future.add_done_callback(self._unfinished.discard)
        return request.future

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                self._changed.wait_for(lambda: self._closed or self._queued() >= self.max_batch, WAIT)
                if self._closed:
                    return
                batch = self._take()
            languages = batch[0][0].languages if batch else self.translator.languages
            outcomes = iter(self._outcomes([text for _, texts in batch for text in texts], languages))
            for request, texts in batch:
                self._add(request, [next(outcomes) for _ in texts])

    def _queued(self) -> int:
        """The number of texts in the queue; long texts count as several."""
        return sum(_count(text) for request in self._queue for text in request.texts[len(request.translations) :])

    def _take(self) -> list[tuple[_Request, Sequence[str]]]:
        """The next batch: requests in the languages of the first one, and the texts of each in the batch. Cancelled
        requests leave the queue."""
        batch: list[tuple[_Request, Sequence[str]]] = []
        others: list[_Request] = []
        room = self.max_batch
        while room > 0 and self._queue:
            request = self._queue.popleft()
            if batch and request.languages != batch[0][0].languages:
                others.append(request)
            elif not request.future.cancelled():
                begin = end = len(request.translations)
                while room > 0 and end < len(request.texts):
                    room -= _count(request.texts[end])
                    end += 1
                batch.append((request, request.texts[begin:end]))
        self._queue.extendleft(reversed(others))
        return batch

    def _outcomes(self, texts: list[str], languages: tuple[str, str]) -> list[Translation | Exception]:
        """The translation of each text, or an exception."""
        source, target = languages
        try:
            return list(self.translator.translations(texts, source_lang=source, target_lang=target))
        except TooLong:
            errors = [self._unreadable(text) for text in texts]
            readable = [text for text, error in zip(texts, errors, strict=True) if error is None]
            rest = iter(self._outcomes(readable, languages))
            return [error or next(rest) for error in errors]
        except Exception as error:
            if len(texts) == 1:
                return [error]
            return [outcome for text in texts for outcome in self._outcomes([text], languages)]

    def _unreadable(self, text: str) -> TooLong | None:
        try:
            self.translator.check(text)
        except TooLong as error:
            return error
        return None

    def _add(self, request: _Request, outcomes: list[Translation | Exception]) -> None:
        """Answer a request, or return it to the queue if it has more texts."""
        error: Exception | None = None
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                error = outcome
                break
            request.translations.append(outcome)
        if error is None and len(request.translations) < len(request.texts):
            with self._changed:
                self._queue.append(request)
        elif request.future.set_running_or_notify_cancel():
            if error is None:
                request.future.set_result(request.translations)
            else:
                number = len(request.translations) + 1
                request.future.set_exception(TooLong(number, str(error)) if isinstance(error, TooLong) else error)


def _count(text: str) -> int:
    return 1 + len(text) // CHARACTERS
