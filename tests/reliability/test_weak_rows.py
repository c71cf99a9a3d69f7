"""Mistakes of the first day, each with the text that says what to write instead, and tracebacks that fit a screen."""

import asyncio
import inspect
import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import aioprefetch as ap
from tests.profile import each_of

PACKAGE = os.path.dirname(ap.__file__)
URI = "memory://weak-rows"
BLOCKING = "without await there are aioprefetch.sync.BlockingOperator(op) and aioprefetch.sync.open(url)"
READER = "with await there is 'async with op.reader(...) as reader'"
WRITER = "with await there is 'async with op.writer(...) as writer'"


def entered(one: AbstractContextManager[object]) -> None:
    with one:
        pass


async def entered_async(one: Any) -> None:
    async with one:
        pass


async def iterated_async(one: Any) -> None:
    async for _ in one:
        pass


async def awaited(one: Any) -> None:
    await one


def scan(op: ap.Operator) -> Any:
    return ap.parquet.scan(op, "a")


def blocked(op: ap.Operator) -> Any:
    return ap.sync.BlockingOperator(op)


def opened(mode: Any) -> Callable[[ap.Operator], Any]:
    return lambda op: ap.sync.open("a", mode, operator=op)


Make = Callable[[Any], Any]
# What is made of an operator, what Python is asked to do with it, and what the answer has.
KINDS: list[tuple[Make, Callable[[Any], Any], str]] = [
    (lambda op: op.list(""), list, "'for' does not work with a Lister: write 'async for entry in op.list(...)' or"),
    (
        lambda op: op.list(""),
        awaited,
        "'await' does not work with a Lister: write 'async for entry in op.list(...)' or",
    ),
    (lambda op: op.list(""), list, f"'await op.list(...).collect()'; {BLOCKING}"),
    (lambda op: op.list(""), entered, f"'with' does not work with a Lister: write 'async with'; {BLOCKING}"),
    (lambda op: op, entered, f"'with' does not work with a Operator: write 'async with'; {BLOCKING}"),
    (lambda op: op.reader("a"), entered, f"'with' does not work with a RangeReader: write 'async with'; {BLOCKING}"),
    (lambda op: op.reader("a"), awaited, "opening does no I/O: write 'async with op.reader(...) as reader'"),
    (lambda op: op.reader("a"), list, f"write 'async for chunk in reader.stream()'; {BLOCKING}"),
    (lambda op: op.reader("a"), iterated_async, "write 'async for chunk in reader.stream()'"),
    (lambda op: op.reader("a").stream(), list, f"write 'async for chunk in ...'; {BLOCKING}"),
    (lambda op: op.reader("a").stream(), awaited, "reader.read() returns all bytes"),
    (lambda op: op.reader("a").iter_ranges([(0, 1)]), list, "write 'async for position, data in ...'"),
    (lambda op: op.reader("a").iter_ranges([(0, 1)]), awaited, "read_ranges returns all of them"),
    (lambda op: op.writer("b"), entered, f"'with' does not work with a ObjectWriter: write 'async with'; {BLOCKING}"),
    (lambda op: op.writer("b"), awaited, "write 'async with op.writer(...) as writer', and 'await op.write(...)'"),
    (lambda op: op.open_file("a"), awaited, "write 'reader = await builder.build()' or"),
    (lambda op: op.open_file("a"), entered_async, "'async with builder.build() as reader'"),
    (scan, awaited, "write 'async for batch in scan' or 'await scan.read_all()'"),
    (scan, entered, "write 'async with', or a plain 'for', which closes by itself"),
    (blocked, entered_async, "write 'with'; with await there is aioprefetch.Operator"),
    (lambda op: blocked(op).list(""), iterated_async, "write 'for'; with await there is aioprefetch.Operator.list"),
    (lambda op: ap.sync.iterate(op.list("")), iterated_async, "write 'for'; with await there is what it was made of"),
    (opened("rb"), entered_async, f"write 'with'; {READER}"),
    (opened("rb"), awaited, f"'await' does not work with a SyncFile: write 'with'; {READER}"),
    (opened("wb"), entered_async, f"write 'with'; {WRITER}"),
    (opened("wb"), awaited, f"write 'with'; {WRITER}"),
]


@each_of(("make", "use", "answer"), KINDS)
def test_the_wrong_kind_of_object_says_what_to_write(make: Make, use: Callable[[Any], Any], answer: str) -> None:
    """The error is a ``TypeError``, as Python's own is there."""
    op = ap.Operator.from_uri(URI)

    async def mistake() -> None:
        made = await asyncio.to_thread(make, op)  # What blocks may not block a loop.
        try:
            outcome = use(made)
            if inspect.iscoroutine(outcome):
                await outcome
        finally:
            for name in ("discard", "close"):
                if not inspect.iscoroutinefunction(getattr(type(made), name, None)) and hasattr(made, name):
                    await asyncio.to_thread(getattr(made, name))
                    break

    with pytest.raises(TypeError) as caught:
        asyncio.run(mistake())
    assert isinstance(caught.value, ap.InvalidType)
    assert answer in str(caught.value)


async def key_in_uri() -> None:
    await ap.Operator.from_uri(f"{URI}/a").read("")


# A call, the error as Python has it, and what its text has.
CALLS: list[tuple[Callable[[Any], Any], type[BaseException], list[str]]] = [
    (lambda op: op.read("a", 0, 2), TypeError, ["offset= and size= (not an end), or suffix=", "not 0, 2"]),
    (lambda op: op.view("a", 0, 2), TypeError, ["offset= and size="]),
    (lambda op: blocked(op).read("a", 0, 2), TypeError, ["offset= and size="]),
    (lambda op: op.read("a", start=0), TypeError, ["it is called 'offset' here", "offset, size, suffix"]),
    (lambda op: op.read("a", start=0, end=2), TypeError, ["'end'", "it is called 'size' here (a number of bytes, not"]),
    (lambda op: op.read("a", length=2), TypeError, ["it is called 'size' here"]),
    (lambda op: op.read("a", sise=2), TypeError, ["did you mean 'size'?"]),
    (lambda op: op.read("a", timeout=2), TypeError, ["each read timeout_seconds"]),
    (lambda op: op.write("a", b"", ContentType="x"), TypeError, ["it is called 'content_type' here"]),
    (lambda op: op.presign("a", ExpiresIn=60), TypeError, ["it is called 'expires_seconds' here"]),
    (lambda op: key_in_uri(), IsADirectoryError, ["a URI is the root", "from_uri('s3://bucket/dir') reads 'a.bin'"]),
    (lambda op: ap.Operator.from_uri("bkt/x"), ValueError, ["'s3://bkt/x' may be meant", "pathlib.Path(...)"]),
    (lambda op: ap.Operator.from_uri("hf://datasets/x"), ValueError, ["https://huggingface.co/", "/resolve/main/FILE"]),
]


@each_of(("call", "kind", "answers"), CALLS)
async def test_a_wrong_call_says_how_it_is_written(
    call: Callable[[Any], Any], kind: type[BaseException], answers: list[str]
) -> None:
    async with ap.Operator.from_uri(URI) as op:

        async def mistake() -> None:
            if inspect.iscoroutine(outcome := call(op)):
                await outcome

        with pytest.raises(kind) as caught:
            await mistake()
    assert [answer for answer in answers if answer not in str(caught.value)] == []


MISSING: list[Callable[[ap.Operator], Any]] = [
    lambda op: op.read("none"),
    lambda op: op.read("none", offset=0, size=10),
    lambda op: op.stat("none"),
    lambda op: op.reader("none").read_at(0, 1),
    lambda op: op.reader("none").read(),
    lambda op: op.reader("none").view_at(0, 1),
    lambda op: op.write("there", b"", if_not_exists=True),
    lambda op: op.delete("there", if_match="other"),
    lambda op: op.copy("none", "x"),
    lambda op: op.move("none/", "x/"),
    lambda op: op.download("none", "there-is-none/x"),
    lambda op: op.download("none/", "there-is-none/"),
    lambda op: op.upload("there-is-none", "x"),
    lambda op: op.read_ranges("none", [(0, 1)]),
    lambda op: op.reader("none").read_ranges([(0, 1)]),
    lambda op: op.reader("there").read_ranges([(0, 9)]),
    lambda op: op.reader("none").read_ranges_into([(0, 1)], [bytearray(1)]),
    lambda op: ap.copy(f"{op.info.url}/none", "there-is-none/"),
    lambda op: ap.copy(f"{op.info.url}/none/", "there-is-none/"),
]


def read_file(op: ap.sync.BlockingOperator) -> None:
    with op.open("none") as file:
        file.read()


BLOCKING_MISSING: list[Callable[[ap.sync.BlockingOperator], Any]] = [
    lambda op: op.read("none"),
    lambda op: op.stat("none"),
    lambda op: op.read_at("none", 0, 1),
    read_file,
]


@pytest.mark.parametrize("uri", [URI, "file://"])
async def test_the_traceback_of_a_mistake_has_three_frames(uri: str, tmp_path: Any) -> None:
    """That of the caller, and at most two of ours; so have the errors that it was caused by."""
    async with ap.Operator.from_uri(uri if uri == URI else f"{uri}{tmp_path}") as op:
        await op.write("there", b"x")
        found: list[Exception] = []
        for call in MISSING:
            try:
                await call(op)
            except (OSError, EOFError) as error:
                found.append(error)

        def look() -> None:
            with ap.sync.BlockingOperator(op) as blocking:
                for call in BLOCKING_MISSING:
                    try:
                        call(blocking)
                    except OSError as error:
                        found.append(error)

        await asyncio.to_thread(look)
    assert len(found) == len(MISSING) + len(BLOCKING_MISSING)
    for mistake in found:
        ours = [one for one in traceback.extract_tb(mistake.__traceback__) if one.filename.startswith(PACKAGE)]
        assert len(ours) <= 2, "".join(traceback.format_exception(mistake))
        assert mistake.__cause__ is None or mistake.__cause__.__traceback__ is None
