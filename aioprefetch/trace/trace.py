"""``record``: listens to an operator, or to all of the process, and writes the picture."""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from aioprefetch.display import counted
from aioprefetch.display.bars import PlannedFile, trace_html
from aioprefetch.errors import InvalidArgument, InvalidType, printable, redact
from aioprefetch.runtime import callers
from aioprefetch.runtime.events import FOLLOWED_MAX, Event, EventBus, follow_all, subscribe_to_all
from aioprefetch.runtime.forks import free_in_child
from aioprefetch.trace.advice import Advice, advise
from aioprefetch.trace.page import page
from aioprefetch.trace.recording import NAMES, Recording
from aioprefetch.trace.timeline import chrome_json, interval_of

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator
    from aioprefetch.sync.blocking_operator import BlockingOperator

T = TypeVar("T")
logger = logging.getLogger("aioprefetch")

# Set where the requests of a process are to know the lines of the program that they are for.
STACKS_VARIABLE = "AIOPREFETCH_TRACE_STACKS"
# How many requests and reads are looked at while a read waits for it: a few milliseconds.
LOOKED_AT_MAX = 2_000
# Objects in a notebook; those with the most bytes.
_SHOWN_OBJECTS_MAX = 4


def record(operator: Operator | BlockingOperator | None = None, *, stacks: bool = False) -> Trace:
    """Record the requests and reads of an operator, and of those made from it; without one, of all in this process.

    ``with ap.trace.record(op) as t: ...`` records the block, on all loops and threads; then
    ``t.write_html("read.html")``. Objects are named by their paths, in a recording of all by their URLs.

    A request or a read that began before is not in it; bytes that a later read gets of such a request are used and not
    fetched. An operator that a cache layer uses for its entries is in no recording of all, with what is read from it
    otherwise: record it by itself. With ``stacks`` each request knows the line of the program that it is for: the
    innermost one outside of Python, this library and installed packages. ``InvalidType`` for other objects.
    """
    if operator is None:
        return Trace(None, stacks=stacks)
    events = getattr(operator, "events", None)
    if not isinstance(events, EventBus):
        raise InvalidType(f"an Operator or BlockingOperator is recorded, not {operator!r}", operation="record")
    return Trace(events, stacks=stacks)


class Trace:
    """The requests and reads of a block of code, and what can be made of them.

    It may be read and written while it records; what it has is then what has happened so far. Memory is bounded:
    of more than 200,000 requests and 10,000 objects the later ones are counted only, and of more than 200,000 ranges
    of bytes those with the smallest gaps between them become one.
    """

    def __init__(self, events: EventBus | None, *, stacks: bool = False) -> None:
        self._events, self._stacks = events, stacks
        self._recording = Recording(names_stores=events is None)
        self._pending = self._recording.pending  # Here requests, reads and events wait until there are many.
        self._lock = free_in_child(threading.Lock())
        self._has_begun = False
        self._leave: tuple[Callable[[], None], ...] = ()

    def __enter__(self) -> Self:
        """Begin to record. ``InvalidArgument`` where it has begun before: a trace records one block."""
        with self._lock:
            if self._has_begun:
                raise InvalidArgument(
                    "a trace records one block: take another record() for the next", operation="record"
                )
            self._has_begun = True
        requests, reads = self._pending.requests, self._pending.reads
        if self._events is None:
            self._leave = follow_all(requests, reads, self._look), subscribe_to_all(self._take, *NAMES)
        else:
            self._leave = (
                self._events.follow(requests, reads, self._look),
                self._events.subscribe(self._take, *NAMES),
            )
        if self._stacks:
            self._leave += (callers.want(),)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return self._looked_at(lambda recording: f"<{_title(recording)}>")

    def _repr_html_(self) -> str:
        recording = self.recording
        with self._lock:
            ends = {name: item.end for name, item in recording.objects.items()}
            requests = recording.requests
            objects = sorted(recording.objects.values(), key=lambda item: -item.received_bytes)[:_SHOWN_OBJECTS_MAX]
            return trace_html(
                _title(recording),
                [(PlannedFile(one.path, ends.get(one.path, 0), ()), *one.received) for one in requests],
                [interval_of(one, recording.ended_at_seconds) for one in requests],
                [(item.path, item.end, (item.fetched & item.used).ranges, item.wasted.ranges) for item in objects],
                [str(advice) for advice in advise(recording)],
            )

    def stop(self) -> None:
        """End the recording, as the end of the ``with`` block does. Requests in flight are followed to their end.

        A read has its bytes a moment before its request has ended.
        """
        leave, self._leave = self._leave, ()
        for end in leave:
            end()

    def forget(self) -> None:
        """Begin again with nothing, as a forked child does."""
        self._pending.clear()
        self._recording = Recording(names_stores=self._events is None, pending=self._pending)

    @property
    def recording(self) -> Recording:
        """The requests, reads, retries and bytes of each object so far. It may grow while it is looked at."""
        return self._looked_at(lambda recording: recording)

    @property
    def advice(self) -> list[Advice]:
        """Sentences that say what to change, where a rule applies."""
        return self._looked_at(advise)

    def html(self, *, title: str = "") -> str:
        """The page as text: one file that needs no network."""
        return self._looked_at(lambda recording: text_of(recording, "", title=title))

    def chrome_json(self) -> str:
        """The trace as text, in the JSON object format of Chrome's trace events."""
        return self._looked_at(chrome_json)

    def write_html(self, path: str | os.PathLike[str], *, title: str = "") -> None:
        """Write the page into a local file, which it replaces when the page is whole. ``OSError`` as of ``open``."""
        write_whole(path, self.html(title=title))

    def write_chrome_json(self, path: str | os.PathLike[str]) -> None:
        """Write the trace for chrome://tracing or https://ui.perfetto.dev into a local file, as ``write_html`` does."""
        write_whole(path, self.chrome_json())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page, or where the name ends in ``.json`` the trace for Chrome."""
        write_whole(path, self._looked_at(lambda recording: text_of(recording, path)))

    def take_out(self) -> dict[str, Any] | None:
        """``Recording.take_out``, while others may read."""
        with self._lock:
            return self._recording.take_out()

    @property
    def is_in_flight(self) -> bool:
        """Whether a request had not ended when the recording was looked at last."""
        return self._recording.is_in_flight

    def _looked_at(self, look: Callable[[Recording], T]) -> T:
        with self._lock:  # Events that come meanwhile wait in the queue.
            self._recording.settle()
            return look(self._recording)

    def _take(self, event: Event) -> None:
        events = self._pending.events
        events.append(event)
        if len(events) > FOLLOWED_MAX:
            self._look()

    def _look(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._recording.settle(LOOKED_AT_MAX)
            except Exception:  # It would be the error of a read.
                logger.exception("requests or events could not be recorded")
            finally:
                self._lock.release()


def _title(recording: Recording) -> str:
    requests = counted(recording.counts["request.started"], "request")
    return f"Trace of {requests}, {counted(recording.fetched_bytes, 'byte')}"


def text_of(recording: Recording, path: str | os.PathLike[str], *, title: str = "") -> str:
    """The page of a recording, or where the name ends in ``.json`` the trace for Chrome."""
    if os.fspath(path).endswith(".json"):
        return chrome_json(recording)
    return page(recording, title=printable(redact(title)), written_at=dt.datetime.now(dt.UTC))


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a file under another name beside it, then replace it: a disk that is full costs no earlier trace."""
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):  # A pipe or a terminal is not replaced.
        with open(target, "w", encoding="utf-8") as file:
            file.write(text)
        return
    partial = f"{target}.{os.getpid()}-{threading.get_ident()}.partial"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, target)
    except BaseException:
        with suppress(OSError):
            os.remove(partial)
        raise
