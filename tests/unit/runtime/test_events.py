"""The bus of events: who is called, with what, and that no listener disturbs a read."""

import asyncio
import gc
import itertools
import logging
import pickle
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import ConditionNotMatch, InvalidArgument, InvalidType, NotFound, Operator
from aioprefetch.runtime.events import EVENTS, REQUEST_EVENTS, Event, EventBus, subscribe_to_all
from aioprefetch.services import S3, Memory
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing import Fault, FaultServer, Rule, VirtualClockLoop
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from tests.probes.calls import counted_calls
from tests.repository.source_tree import PACKAGE, python_files


def test_listeners_get_all_events_or_those_they_name() -> None:
    bus, everything, some = EventBus(), list[Event](), list[Event]()
    off = bus.subscribe(everything.append)
    bus.subscribe(some.append, "block.evicted", "cache.hit")
    before = time.monotonic()
    for name in ("block.evicted", "block.fetched", "cache.hit"):
        bus.publish(name, "k", start=1)
    off()
    off()
    bus.publish("cache.hit", "l")
    assert [event.name for event in everything] == ["block.evicted", "block.fetched", "cache.hit"]
    assert [(event.name, event.path) for event in some] == [
        ("block.evicted", "k"),
        ("cache.hit", "k"),
        ("cache.hit", "l"),
    ]
    assert before <= everything[0].at_seconds <= everything[-1].at_seconds <= time.monotonic()


def test_events_are_immutable_and_pickle() -> None:
    bus, seen = EventBus(), list[Event]()
    bus.subscribe(seen.append)
    bus.publish("block.evicted", "k", start=1)
    (event,) = seen
    changed: Any = event
    with pytest.raises(AttributeError):
        changed.path = "l"
    with pytest.raises(TypeError):
        changed.facts["start"] = 2
    assert pickle.loads(pickle.dumps(event)) == event
    bus.store = "memory://named"
    bus.publish("block.evicted", "k", start=1)
    assert pickle.loads(pickle.dumps(seen[1])).store == "memory://named"
    assert repr(event) == "<Event block.evicted 'k' start=1>"


def test_what_cannot_listen_is_refused() -> None:
    async def wait(event: Event) -> None:
        """A coroutine function, which would never be awaited."""

    class Waiting:
        """The same as an object."""

        async def __call__(self, event: Event) -> None:
            """Never awaited."""

    bus = EventBus()
    with pytest.raises(InvalidArgument, match=r"no event 'request\.ended'; there are request\.started"):
        bus.subscribe(print, "request.finished", "request.ended")
    not_callable: Any = 5
    for listener in (wait, not_callable, Waiting()):
        with pytest.raises(InvalidType, match="plain function"):
            bus.subscribe(listener)
    assert not bus.listeners


@checks("reliability:C32")
async def test_a_failing_listener_disturbs_no_read_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def fail(event: Event) -> None:
        raise asyncio.CancelledError if len(heard) % 2 else ValueError("this listener is broken")

    async with Operator(Memory()) as op:
        op.events.subscribe(fail)
        op.events.subscribe(lambda event: heard.append(event.name))
        await op.write("k", b"0123456789")
        with caplog.at_level(logging.ERROR, "aioprefetch"):
            assert await op.read("k") == b"0123456789"
            async with op.reader("k") as reader:
                assert await reader.read_at(2, 3) == await reader.read_at(2, 3) == b"234"
    assert {"request.started", "request.finished", "read.served", "reader.closed"} <= set(heard)
    assert len(caplog.records) <= 1


def test_subscriptions_of_many_threads_are_all_kept() -> None:
    bus, counts = EventBus(), [0] * 8

    def count(number: int, event: Event) -> None:
        counts[number] += 1

    def come_and_go(number: int) -> None:
        for _ in range(200):
            bus.subscribe(lambda event: None)()
        bus.subscribe(lambda event: count(number, event))

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    for _ in range(100):
        bus.publish("cache.hit")
    for thread in threads:
        thread.join()
    before = list(counts)
    bus.publish("cache.hit")
    assert counts == [count + 1 for count in before]


async def test_the_events_of_a_family_are_one() -> None:
    """Of an operator, of those made from it by a layer, of copies, on all loops, and of its synchronous twin."""
    op = Operator(Memory("events of a family"))
    copy = pickle.loads(pickle.dumps(op))
    seen: list[Event] = []
    off = copy.events.subscribe(seen.append, "request.started")
    async with op:
        await op.write("k", b"x")
        await op.layer(op.layers[-1]).read("k")
    await asyncio.to_thread(_read_in_a_thread, op)
    off()
    assert [event.facts["operation"] for event in seen] == ["write", "read", "read"]
    assert len({event.facts["request_id"] for event in seen}) == 3


def _read_in_a_thread(op: Operator) -> None:
    with BlockingOperator(op) as blocking:
        assert blocking.events is op.events
        assert blocking.read("k") == b"x"


def test_a_virtual_clock_gives_the_times_of_events() -> None:
    async def read() -> list[float]:
        op = Operator(Memory()).layer(FaultLayer((Injection(times=None, delay_seconds=10),)))
        times: list[float] = []
        op.events.subscribe(lambda event: times.append(event.at_seconds), "request.started")
        async with op:
            for _ in range(3):
                await op.exists("k")
        return times

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        assert runner.run(read()) == [10.0, 20.0, 30.0]


def test_every_event_that_is_published_has_its_word() -> None:
    published = re.compile(r"publish\(\s*\"([a-z_]+\.[a-z_]+)\"")
    found = {name for file in python_files(PACKAGE) for name in published.findall(file.read_text("utf-8"))}
    assert found <= EVENTS.keys()
    assert {"request.retried", "block.fetched", "read.served"} <= found
    assert set(REQUEST_EVENTS) <= EVENTS.keys()


def test_one_listener_hears_all_buses() -> None:
    """Those that there are and those to come, until it ends; and it keeps none of them alive."""
    before, heard = EventBus(), list[str]()
    end = subscribe_to_all(lambda event: heard.append(event.path), "read.served", "cache.hit")
    later = EventBus()
    for bus in (before, later):
        bus.publish("read.served", "a")
        bus.publish("cache.missed", "b")
    assert heard == ["a", "a"]
    reference = weakref.ref(later)
    del later, bus
    gc.collect()
    assert reference() is None
    end()
    end()
    before.publish("read.served", "c")
    EventBus().publish("read.served", "d")
    assert heard == ["a", "a"]
    assert before.listeners == ()
    with pytest.raises(InvalidArgument, match=r"there is no event 'read\.serve'"):
        subscribe_to_all(print, "read.serve")


EVENT_FILES = ("runtime/events.py", "accessor/request_events.py", "accessor/request_events.py")


@pytest.mark.cost
async def test_without_a_listener_no_code_of_events_runs() -> None:
    """Not for a read out of memory, nor for one that is not, nor for one without a reader."""
    files = EVENT_FILES
    async with Operator(Memory(), block_bytes=64 << 10) as op:
        await op.write("k", bytes(1 << 20))
        for policy in ("random", "adaptive"):
            async with op.reader("k", policy=policy) as reader:
                await reader.read_at(0, 100)
                with counted_calls(of_files=files) as calls:
                    for offset in (10, 300_000, 300_010, 900_000):
                        await reader.read_at(offset, 100)
                        await reader.view_at(offset, 50)
                    await op.read("k", size=100)
                    await op.view("k", size=100)
                    await op.stat("k")
                assert calls.number == 0
        op.events.subscribe(lambda event: None)
        with counted_calls(of_files=files) as calls:
            await op.read("k", size=100)
        assert calls.number > 5


@pytest.mark.cost
async def test_without_a_listener_no_code_of_events_runs_over_http() -> None:
    """Nor for requests, on a connection that is there or not; nor after listeners have gone."""
    async with FaultServer({"bucket/k": bytes(1 << 20)}) as server:
        service = S3(bucket="bucket", endpoint_url=server.url, region="us-east-1", anonymous=True)
        async with Operator(service, block_bytes=64 << 10) as op, op.reader("k", policy="random") as reader:
            await op.stat("k")
            with counted_calls(of_files=EVENT_FILES) as calls:
                for offset in (10, 300_000, 300_010, 900_000):
                    await reader.read_at(offset, 100)
                await op.read("k", size=100)
                await op.stat("k")
            assert calls.number == 0
            op.events.subscribe(lambda event: None)()
            with ap.trace.record(op):
                pass
            with counted_calls(of_files=EVENT_FILES) as calls:
                await op.read("k", size=100)
                await reader.read_at(600_000, 100)
            assert calls.number == 0
            assert server.count() > 6


def test_a_finalizer_may_end_subscriptions_anywhere() -> None:
    """In the middle of every line of another subscription's beginning and end, and of a choice of listeners."""

    def act(bus: EventBus, heard: list[str]) -> None:
        off = bus.subscribe(lambda event: heard.append("other"), "cache.hit")
        bus.publish("cache.hit")
        off()

    lines = 0
    for number in itertools.count():
        bus, ended, heard = EventBus(), list[str](), list[str]()
        end = bus.subscribe(lambda event, ended=ended: ended.append(event.name))  # type: ignore[misc]
        end_all = subscribe_to_all(lambda event, ended=ended: ended.append(event.name))  # type: ignore[misc]
        bus.subscribe(lambda event, heard=heard: heard.append("kept"), "cache.missed")  # type: ignore[misc]
        with _at_line(number, end, end_all) as at:
            act(bus, heard)
            EventBus()
        ended.clear()
        bus.publish("cache.hit")
        bus.publish("cache.missed")
        joined = EventBus()
        if at.has_run:
            assert (ended, heard.count("kept"), len(bus.listeners), joined.listeners) == ([], 1, 1, ())
        end_all()
        if not at.has_run:
            break
        lines += 1
    assert lines > 20


class _Interruption:
    has_run = False


@contextmanager
def _at_line(number: int, *calls: Callable[[], None]) -> Iterator[_Interruption]:
    """Make the calls at the n-th line that runs in the module of events."""
    at, left = _Interruption(), number

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("runtime/events.py"):
            return None
        if event == "line" and not at.has_run:
            left -= 1
            if left < 0:
                at.has_run = True
                for call in calls:
                    call()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield at
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("ignores", [False, True])
async def test_a_response_that_nothing_has_changed_is_no_failure(tmp_path: Path, ignores: bool) -> None:
    """As any service says it, and as we find it where a server sends the object anyway."""
    rules = [Rule(fault=Fault(ignore_if_none_match=True))] if ignores else []
    async with FaultServer({"k": b"abc"}, rules) as server:
        for uri in ("memory://unchanged", str(tmp_path), server.url):
            async with Operator.from_uri(Path(uri) if uri == str(tmp_path) else uri) as op:
                if uri != server.url:
                    await op.write("k", b"abc")
                etag = (await op.stat("k")).etag
                seen: list[Event] = []
                op.events.subscribe(seen.append, "request.finished", "request.failed")
                with pytest.raises(ConditionNotMatch):
                    await op.read("k", if_none_match=etag)
                assert [event.name for event in seen] == ["request.finished"], uri
                with pytest.raises(ConditionNotMatch):
                    await op.read("k", if_match="another")
                assert [event.name for event in seen[1:]] == ["request.failed"], uri


async def test_events_hold_no_secret_of_a_path() -> None:
    """A signed URL that was given as a path loses its query, its words for secrets theirs; the request has the key."""
    heard: list[Event] = []
    objects = {"e/two?X-Amz-Signature=CANARY": b"0123"}
    async with FaultServer(objects) as server, Operator.from_uri(server.url) as op:
        origin = server.url
        op.events.subscribe(heard.append)
        async with op.reader("e/two?X-Amz-Signature=CANARY") as reader:
            assert await reader.read_at(0, 2) == b"01"
        with pytest.raises(NotFound):
            await op.read("https://host/k?sig=CANARY")
    assert {"request.finished", "request.failed", "read.served"} <= {event.name for event in heard}
    assert not any("CANARY" in repr(event) for event in heard)
    assert {event.path for event in heard if event.name == "read.served"} == {"e/two?X-Amz-Signature=***"}
    urls = {event.facts["url"] for event in heard if event.name == "request.finished"}
    assert urls == {origin}


async def test_nothing_that_is_shown_holds_a_secret_of_a_path(caplog: pytest.LogCaptureFixture) -> None:
    """Readers, writers and files, closed ones and what is logged at their end."""
    caplog.set_level(logging.DEBUG)
    op, path = Operator(Memory()), "d/k?sig=CANARY"
    async with op.writer(path) as writer:
        await writer.write(b"abc")
        shown = [repr(writer)]
    async with op.reader(path) as reader:
        await reader.read_at(0, 1)
        shown += [repr(reader), reader._repr_html_()]
    shown += [repr(writer), repr(reader)]
    await op.aclose()
    assert "CANARY" not in "".join(shown) + caplog.text
    assert "closed <RangeReader" in caplog.text


def test_no_file_shows_a_secret_of_its_path() -> None:
    with BlockingOperator(Operator(Memory())) as op:
        with op.open("d/k?sig=CANARY", "wb") as written:
            written.write(b"abc")
        with op.open("d/k?sig=CANARY") as file:
            for one in (written, file):
                assert "sig=***" in repr(one)
                assert "CANARY" not in repr(one)
