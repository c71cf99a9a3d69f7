"""`iterate`: all items in order, never more than the window ahead, errors once, and nothing left behind."""

import asyncio
import contextvars
import gc
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType, TimedOut, WrongLoop
from aioprefetch.sync import BlockingIterator, iterate, run
from aioprefetch.sync.loop_thread import loop_thread
from tests.profile import each_of
from tests.stores.gated_reader import settle


class Watched:
    """A source that counts what it made, and tells when it was closed."""

    def __init__(self, count: int, *, sizes: list[int] | None = None) -> None:
        self.count = count
        self.sizes = sizes
        self.made = 0
        self.closed = threading.Event()
        self.thread: threading.Thread | None = None

    async def items(self) -> AsyncIterator[int]:
        self.thread = threading.current_thread()
        try:
            for number in range(self.count):
                self.made += 1
                await asyncio.sleep(0)
                yield number if self.sizes is None else self.sizes[number]
        finally:
            await asyncio.sleep(0)
            self.closed.set()


async def wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()


@each_of("window", [1, 2, 7])
def test_all_items_come_in_order_and_the_source_is_closed(window: int) -> None:
    source = Watched(300)
    assert list(iterate(source.items(), window_items=window)) == list(range(300))
    assert source.closed.is_set()


def test_ten_thousand_items_through_a_window_of_one() -> None:
    source = Watched(10_000)
    taken = 0
    for number in iterate(source.items(), window_items=1):
        assert number == taken
        taken += 1
        assert source.made - taken <= 1
    assert taken == 10_000


@each_of("window", [1, 2, 5])
def test_the_pump_never_holds_more_than_the_window(window: int) -> None:
    source = Watched(60)
    with iterate(source.items(), window_items=window) as items:
        for taken, _ in enumerate(items, 1):
            run(settle())
            assert source.made - taken <= window
        assert source.made == 60


def test_it_runs_ahead_and_goes_on_when_the_window_is_half_empty() -> None:
    source = Watched(60)
    with iterate(source.items(), window_items=4) as items:
        for taken, _ in enumerate(items, 1):
            run(settle())
            assert source.made == 60 or source.made - taken > 2


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 100), max_size=30),
    window_items=st.integers(1, 6),
    window_bytes=st.integers(1, 150),
)
def test_bytes_stay_within_the_window_too(sizes: list[int], window_items: int, window_bytes: int) -> None:
    source = Watched(len(sizes), sizes=sizes)
    taken: list[int] = []
    largest = 0
    items = iterate(source.items(), window_items=window_items, window_bytes=window_bytes, size_of=lambda size: size)
    for size in items:
        taken.append(size)
        run(settle(4))
        held = sizes[len(taken) : source.made]
        # An item's size shows when it is made: the largest so far tells what to expect, and one alone may be larger.
        largest = max([largest, *sizes[: source.made]])
        assert len(held) <= window_items
        assert len(held) <= 1 or sum(held) <= window_bytes + largest
    assert taken == sizes


def test_items_of_one_size_never_exceed_the_window() -> None:
    source = Watched(40, sizes=[10] * 40)
    items = iterate(source.items(), window_items=100, window_bytes=35, size_of=lambda size: size)
    for taken, _ in enumerate(items, 1):
        run(settle())
        assert (source.made - taken) * 10 <= 35


def test_sizes_are_those_of_buffers_without_size_of() -> None:
    async def buffers() -> AsyncIterator[object]:
        yield b"four"
        yield memoryview(b"seven!!")
        yield "text has no size"

    items = iterate(buffers(), window_bytes=100)
    assert [next(items), bytes(next(items))] == [b"four", b"seven!!"]  # type: ignore[call-overload]
    with pytest.raises(InvalidType, match="size of str is not known"):
        next(items)


def test_nothing_runs_before_the_first_item_is_asked_for() -> None:
    source = Watched(3)
    items = iterate(source.items)
    run(settle())
    assert source.made == 0
    assert next(items) == 0
    items.close()


def test_a_function_is_called_on_the_loop_thread() -> None:
    source = Watched(3)
    threads = []

    def make() -> AsyncIterator[int]:
        threads.append(threading.current_thread())
        return source.items()

    assert list(iterate(make)) == [0, 1, 2]
    assert threads == [source.thread]
    assert source.thread is not threading.current_thread()


def test_an_error_comes_where_the_items_end_once_with_its_traceback() -> None:
    async def fail() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise LookupError("as raised")

    items = iterate(fail(), window_items=5)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(LookupError, match="as raised") as caught:
        next(items)
    assert "in fail" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert list(items) == []


def test_a_function_that_fails_or_returns_nonsense() -> None:
    def fail() -> AsyncIterator[int]:
        raise LookupError("not even begun")

    with pytest.raises(LookupError, match="not even begun"):
        next(iterate(fail))
    with pytest.raises(InvalidType, match="returned list, no asynchronous iterable"):
        next(iterate(lambda: [1]))  # type: ignore[arg-type, return-value]


@each_of("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
def test_what_is_no_exception_crosses_too_and_the_loop_goes_on(error: BaseException) -> None:
    async def leave() -> AsyncIterator[int]:
        yield 1
        raise error

    thread = loop_thread()
    items = iterate(leave())
    assert next(items) == 1
    with pytest.raises(type(error)):
        next(items)
    assert loop_thread() is thread
    assert run(asyncio.sleep(0, "goes on")) == "goes on"


def test_close_cancels_the_source_and_waits_for_its_cleanup() -> None:
    source = Watched(100)
    items = iterate(source.items())
    next(items)
    items.close()
    assert source.closed.is_set()
    assert list(items) == []
    items.close()


def test_close_breaks_off_an_item_that_is_being_made() -> None:
    events: list[str] = []

    async def hang() -> AsyncIterator[int]:
        try:
            yield 1
            await wait_for_ever()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        finally:
            events.append("closed")

    with iterate(hang()) as items:
        assert next(items) == 1
        run(settle())
    assert events == ["cancelled", "closed"]


def test_a_source_that_swallows_its_cancellation_is_closed_all_the_same() -> None:
    events: list[str] = []

    async def stubborn() -> AsyncIterator[int]:
        try:
            yield 1
            try:
                await wait_for_ever()
            except asyncio.CancelledError:
                events.append("swallowed")
            yield 2
            yield 3
        finally:
            events.append("closed")

    items = iterate(stubborn())
    assert next(items) == 1
    run(settle())
    items.close()
    assert events == ["swallowed", "closed"]


def test_a_generator_that_delegates_closes_it() -> None:
    source = Watched(100)

    def outer() -> Generator[int, None, None]:
        yield from iterate(source.items())

    generator = outer()
    assert next(generator) == 0
    generator.close()
    assert source.closed.is_set()


def test_a_forgotten_iterator_is_closed() -> None:
    source = Watched(100)
    items = iterate(source.items())
    next(items)
    del items
    gc.collect()
    assert source.closed.wait(5)


def test_a_timeout_cancels_the_source() -> None:
    hanging, closed = threading.Event(), threading.Event()

    async def hang() -> AsyncIterator[int]:
        try:
            yield 1
            hanging.set()
            await wait_for_ever()
        finally:
            closed.set()

    items = iterate(hang(), timeout_seconds=0.1)
    items.start()
    assert hanging.wait(20)  # The first item is there, however late the loop's thread came to it.
    assert next(items) == 1
    with pytest.raises(TimedOut, match=r"timeout_seconds=0\.1"):
        next(items)
    assert closed.is_set()
    assert list(items) == []


def test_a_failing_cleanup_is_logged_and_does_not_raise(caplog: pytest.LogCaptureFixture) -> None:
    async def clumsy() -> AsyncIterator[int]:
        try:
            yield 1
            await wait_for_ever()
        finally:
            raise OSError("the store is gone")

    items = iterate(clumsy())
    next(items)
    items.close()
    assert "the store is gone" in caplog.text


def test_an_iterable_without_aclose_will_do() -> None:
    class Countdown:
        left = 3

        def __aiter__(self) -> "Countdown":
            return self

        async def __anext__(self) -> int:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return self.left

    assert list(iterate(Countdown())) == [2, 1, 0]


def test_a_source_that_never_waits_lets_others_run() -> None:
    async def busy() -> AsyncIterator[int]:
        for number in range(5_000):
            yield number

    items = iterate(busy(), window_items=5_000)
    assert next(items) == 0
    assert run(asyncio.sleep(0, "in between"), timeout_seconds=10) == "in between"
    assert sum(1 for _ in items) == 4_999


def test_context_variables_go_along() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    async def read() -> AsyncIterator[str]:
        yield variable.get()

    variable.set("set by the caller")
    assert list(iterate(read())) == ["set by the caller"]


async def test_a_running_loop_is_refused_with_a_hint() -> None:
    source = Watched(3)
    with pytest.raises(WrongLoop, match="async for"):
        iterate(source.items)
    with pytest.raises(WrongLoop, match="await"):
        run(settle())
    items: BlockingIterator[int] = await asyncio.to_thread(iterate, source.items)
    with pytest.raises(WrongLoop, match="async for"):
        next(items)
    assert await asyncio.to_thread(lambda: list(items)) == [0, 1, 2]


def test_the_loop_thread_is_refused() -> None:
    async def nested() -> None:
        next(iterate(Watched(3).items))

    with pytest.raises(WrongLoop, match="would wait for itself"):
        run(nested())


@each_of(
    ("make", "error"),
    [
        (lambda: iterate([1]), InvalidType),  # type: ignore[arg-type]
        (lambda: iterate(Watched(1).items, window_items=0), ConfigInvalid),
        (lambda: iterate(Watched(1).items, window_items=True), InvalidType),
        (lambda: iterate(Watched(1).items, window_bytes=0), ConfigInvalid),
        (lambda: iterate(Watched(1).items, timeout_seconds=0), InvalidArgument),
        (lambda: iterate(Watched(1).items, timeout_seconds=float("nan")), InvalidArgument),
    ],
)
def test_nonsense_is_refused(make: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        make()
