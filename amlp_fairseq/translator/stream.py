"""What a function tells while it works in another thread."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event, Thread, current_thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

Value = TypeVar("Value")
Tell = Callable[[Value], None]


#: The threads of streams that have begun, with what ends them. The engine must not be at work when Python ends.
_running: dict[Thread, Event] = {}


@atexit.register
def _end_all() -> None:
    for closed in [*_running.values()]:
        closed.set()
    for thread in [*_running]:
        thread.join()


class Closed(Exception):
    """Nobody wants to know more."""


class Stream(Iterator[Value], Generic[Value]):
    """The values that a function tells, as they come. It begins when the first one is asked for.

    Args:
        work: is called with ``tell``, in another thread. What it raises is raised here.
    """

    def __init__(self, work: Callable[[Tell[Value]], None]) -> None:
        self._values: SimpleQueue[tuple[Value] | BaseException | None] = SimpleQueue()
        self._closed = Event()
        self._thread = Thread(target=_run, args=(work, self._values, self._closed), name="stream", daemon=True)

    def __next__(self) -> Value:
        if self._thread.ident is None:
            _running[self._thread] = self._closed
            self._thread.start()
        value = None if self._closed.is_set() else self._values.get()
        if isinstance(value, tuple):
            return value[0]
        self.close()
        raise StopIteration if value is None else value

    def close(self) -> None:
        """End it: the function ends where it tells the next value. Any thread may do that."""
        self._closed.set()
        self._values.put(None)  # for one that waits

    __del__ = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _run(
    work: Callable[[Tell[Value]], None], values: SimpleQueue[tuple[Value] | BaseException | None], closed: Event
) -> None:
    def tell(value: Value) -> None:
        if closed.is_set():
            raise Closed
        values.put((value,))

    try:
        work(tell)
        values.put(None)
    except BaseException as error:
        values.put(error)
    finally:
        _running.pop(current_thread(), None)
