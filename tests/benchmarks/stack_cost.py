"""What the layers cost: the CPU of a 4 KiB read through the default stack, over a store that does next to nothing.

Run by ``python -m tests.benchmarks.stack_cost``. The store fills 4 KiB after one turn of the event loop, 16 reads are
in flight, and what the same store costs when it is called alone is taken off, so that the rest is our own: request,
sink and layers. Rows are measured in turns, so that a slow moment of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aioprefetch as ap
from aioprefetch.accessor.http_headers import parse_content_range, parse_http_date, range_header, unquote_etag
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.response_check import check_reply
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.operator.stack import default_stack
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Capability, ReadHead, ReadReply, ReadRequest, ServiceInfo, UncheckedHead

IN_FLIGHT = 16
READ_BYTES = 4096
READS = 250
PIECES = 5000
ROUNDS = 41
OBJECT_BYTES = 1 << 20
HEAD = ReadHead(start=0, size=READ_BYTES, total=OBJECT_BYTES, etag="0123456789abcdef")
REQUEST = ReadRequest(path="k", offset=0, size=READ_BYTES)
BODY = bytes(READ_BYTES)
DATE = "Tue, 01 Oct 2024 12:00:00 GMT"
CONTENT_RANGE = f"bytes 0-{READ_BYTES - 1}/{OBJECT_BYTES}"
CAPABILITY = Capability(read=True, read_range=True, read_suffix=True, read_if_match=True, stat=True)

Piece = Callable[[], object]
Row = Callable[[], Awaitable[object]]


class FixedSink(Sink):
    """The least that can take a response: memory that is there already."""

    __slots__ = ()
    memory = memoryview(bytearray(READ_BYTES))

    def __init__(self) -> None:
        """Nothing is set up: a read of the store alone uses the methods below and no more."""

    def begin(self, head: ReadHead, *, path: str = "") -> None:
        """Take any head."""

    def writable(self) -> memoryview:
        """The memory."""
        return self.memory

    def advance(self, count: int) -> None:
        """Count nothing."""


@dataclass(frozen=True)
class NullService:
    """A store that answers every read with the same bytes after one turn of the loop."""

    stall_seconds: float | None = 20.0

    @property
    def info(self) -> ServiceInfo:
        return ServiceInfo(scheme="null", name="bench")

    @property
    def capability(self) -> Capability:
        return CAPABILITY

    def build(self, runtime: Runtime) -> Accessor:
        """The live store."""
        return NullAccessor(self, runtime)


class NullAccessor(ServiceAccessor):
    """The live store. With ``stall_seconds`` it says that it watches over its own waiting, as a transport does."""

    def __init__(self, service: NullService, runtime: Runtime) -> None:
        super().__init__(service.info, service.capability, runtime)
        self.stall_seconds = service.stall_seconds

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        sink.begin(HEAD, path=request.path)
        sink.writable()[:] = BODY
        loop = self.runtime.loop
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn
        sink.advance(READ_BYTES)
        return ReadReply(head=HEAD, received=READ_BYTES)


async def cpu_of(call: Row) -> float:
    """Microseconds of CPU for one call, ``IN_FLIGHT`` of them at a time."""

    async def work() -> None:
        for _ in range(READS):
            await call()

    started = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work())
    return (time.process_time() - started) / (READS * IN_FLIGHT) * 1e6


def cpu_of_piece(piece: Piece) -> float:
    """Microseconds of CPU for one plain call, the loop around it taken off."""
    numbers = range(PIECES)
    started = time.process_time()
    for _ in numbers:
        pass
    between = time.process_time()
    for _ in numbers:
        piece()
    return (time.process_time() - between - (between - started)) / PIECES * 1e6


def through(accessor: Accessor) -> Row:
    """A read through a stack, with a request that is there already."""
    return lambda: accessor.read(REQUEST, CollectSink())


def rows_of(runtime: Runtime, operator: ap.Operator, unwatched: ap.Operator) -> dict[str, Row]:
    """What is measured with 16 in flight, the store alone first."""
    buffer = bytearray(READ_BYTES)
    store, sink = NullService().build(runtime), FixedSink()
    rows: dict[str, Row] = {"the store alone": lambda: store.read(REQUEST, sink), "with a CollectSink": through(store)}
    accessor = store
    for layer in default_stack(NullService(), attempts_max=4, retry_seconds=60.0):
        accessor = layer.wrap(accessor, runtime)
        rows[f"+ {type(layer).__name__}"] = through(accessor)
    rows["Operator.view"] = lambda: operator.view("k", offset=0, size=READ_BYTES)
    rows["Operator.view, if_match"] = lambda: operator.view("k", offset=0, size=READ_BYTES, if_match=HEAD.etag)
    rows["Operator.view, timeout_seconds"] = lambda: operator.view("k", size=READ_BYTES, timeout_seconds=30.0)
    rows["Operator.read"] = lambda: operator.read("k", offset=0, size=READ_BYTES)
    rows["Operator.read_into"] = lambda: operator.read_into("k", 0, buffer)
    rows["Operator.view, unwatched store"] = lambda: unwatched.view("k", offset=0, size=READ_BYTES)
    return rows


def collect() -> memoryview:
    """A sink and its memory."""
    sink = CollectSink()
    sink.begin(HEAD)
    sink.writable()
    sink.advance(READ_BYTES)
    return sink.to_view()


def answer_head() -> UncheckedHead:
    """The head of a response as a service makes it."""
    return UncheckedHead(
        status=206,
        content_range=CONTENT_RANGE,
        content_length=READ_BYTES,
        etag=unquote_etag('"0123456789abcdef"'),
        last_modified=parse_http_date(DATE),
        content_type="application/octet-stream",
    )


def pieces_of(runtime: Runtime) -> dict[str, Piece]:
    """What a read is made of."""
    response = answer_head()

    def timed() -> None:
        with runtime.timer("action_http_get_request"):
            pass

    def timed_by_hand() -> None:
        counters, started = runtime.counters, runtime.loop.time()
        counters["action_http_get_request"] += 1
        counters.succeeded("action_http_get_request", runtime.loop.time() - started)

    def counted() -> None:
        runtime.counters["stream_read_total_bytes"] += READ_BYTES

    return {
        "ReadRequest": lambda: ReadRequest(path="k", offset=0, size=READ_BYTES),
        "ReadHead": lambda: ReadHead(start=0, size=READ_BYTES, total=OBJECT_BYTES, etag="e"),
        "UncheckedHead": lambda: UncheckedHead(
            status=206, content_range=CONTENT_RANGE, content_length=READ_BYTES, etag="e"
        ),
        "ReadReply": lambda: ReadReply(head=HEAD, received=READ_BYTES),
        "CollectSink, filled and viewed": collect,
        "range_header": lambda: range_header(REQUEST),
        "parse_content_range": lambda: parse_content_range(CONTENT_RANGE),
        "parse_http_date": lambda: parse_http_date(DATE),
        "unquote_etag": lambda: unquote_etag('"0123456789abcdef"'),
        "UncheckedHead from headers": answer_head,
        "check_reply": lambda: check_reply(REQUEST, response),
        "a Timer, begun and ended": timed,
        "the same by hand": timed_by_hand,
        "a counter": counted,
    }


async def measure(rounds: int) -> dict[str, float]:
    """The median of each row in microseconds; what is read with 16 in flight as the difference to the store alone."""
    runtime = Runtime(RuntimeOptions())
    samples: dict[str, list[float]] = {}
    async with (
        ap.Operator(NullService()) as operator,
        ap.Operator(NullService(stall_seconds=None)) as unwatched,
    ):
        rows = rows_of(runtime, operator, unwatched)
        pieces = pieces_of(runtime)
        for _ in range(rounds):
            taken = {name: await cpu_of(row) for name, row in rows.items()}
            alone = taken["the store alone"]
            for name, cpu in taken.items():
                samples.setdefault(name, []).append(cpu if name == "the store alone" else cpu - alone)
            for name, piece in pieces.items():
                samples.setdefault(name, []).append(cpu_of_piece(piece))
    await runtime.aclose()
    return {name: statistics.median(found) for name, found in samples.items()}


def main() -> None:
    """Print the table; with ``--json`` write it too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.rounds))
    for name, cpu in found.items():
        print(f"{name:34}{cpu:8.2f} µs")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
