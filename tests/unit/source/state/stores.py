"""Shared by tests of a state: stores that crash or ignore conditions, records, and a dict as a model."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor, Layer
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.source.options import StateOptions
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.state.store import SourceIdentity
from aioprefetch.source.values import Cursor, FetchItem, FileIndex, KnownFile, Record, SourceFile, TailAndSweep
from aioprefetch.values import Metadata, Request, WriteRequest
from tests.stores.verb_layer import Forward, VerbLayer

IDENTITY = SourceIdentity("memory://bucket/landing", "*.jsonl", {"format": "jsonl"})
# So small that a few files make several runs and row groups, and that little stays in memory.
SMALL = StateOptions(
    run_rows=8,
    group_rows=3,
    keep_records=2,
    memory_items=3,
    cache_bytes=1,
    compact_entries=10**9,
    compact_records=10**9,
    forget_after_seconds=1.0,
)
NO_TIME = 10**6


class Crash(Exception):
    """The process died."""


@dataclass(frozen=True)
class CrashLayer(VerbLayer):
    """Dies at call number ``at``, before or after it has taken effect, and stays dead."""

    at: int
    after: bool = False
    calls: list[str] = field(default_factory=list, compare=False)

    async def around(self, request: Request, forward: Forward) -> Any:
        number = len(self.calls)
        self.calls.append(f"{request.operation} {request.path}")
        if number > self.at or (number == self.at and not self.after):
            raise Crash(self.calls[self.at])
        response = await forward(request)
        if number == self.at:
            raise Crash(self.calls[self.at])
        return response


@dataclass(frozen=True)
class MeanwhileLayer(VerbLayer):
    """``happens`` is awaited before each call of an operation."""

    operation: str
    happens: Callable[[], Awaitable[None]]

    async def around(self, request: Request, forward: Forward) -> Any:
        if request.operation == self.operation:
            await self.happens()
        return await forward(request)


@dataclass(frozen=True)
class IgnoringLayer(VerbLayer):
    """A store that takes conditions of writes and ignores them, as ``rclone serve s3`` does."""

    creates: bool = True
    replaces: bool = True

    async def write(self, inner: Accessor, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        if self.creates:
            request = replace(request, if_not_exists=False)
        if self.replaces:
            request = replace(request, if_match=None)
        return await inner.write(request, data)


class Switch(Layer):
    """Passes calls through ``layer``, which a test may change while the store is open; through none at first."""

    def __init__(self) -> None:
        self.layer: Layer | None = None

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return cast(Accessor, _Switched(inner, runtime, self))


class _Switched:
    def __init__(self, inner: Accessor, runtime: Runtime, switch: Switch) -> None:
        self._inner, self._runtime, self._switch = inner, runtime, switch
        self._wrapped: tuple[Layer | None, Accessor] = None, inner

    def __getattr__(self, name: str) -> Any:
        layer = self._switch.layer
        if layer is not self._wrapped[0]:
            self._wrapped = layer, self._inner if layer is None else layer.wrap(self._inner, self._runtime)
        return getattr(self._wrapped[1], name)


_operators: list[ap.Operator] = []
_states: list[SourceState] = []


def memory() -> ap.Operator:
    """A store of its own, without retries or limits."""
    operator = ap.Operator.bare(ap.services.Memory())
    _operators.append(operator)
    return operator


async def opened(operator: ap.Operator, **options: Any) -> SourceState:
    """A state in a directory of the store, opened for writing by default."""
    settings: dict[str, Any] = {"first": TailAndSweep(), "clock_ms": lambda: 0, "options": SMALL, **options}
    state = await SourceState.open(operator, "state/", settings.pop("identity", IDENTITY), **settings)
    _states.append(state)
    return state


async def close_all() -> None:
    """Close what ``opened`` and ``memory`` have made."""
    for state in _states:
        await state.aclose()
    for operator in _operators:
        await operator.aclose()


def forget_all() -> None:
    """Forget states and stores that are closed, or gone with their loop."""
    _states.clear()
    _operators.clear()


def file(key: str, version: int = 0) -> SourceFile:
    """A version of an object."""
    return SourceFile(key, 100 + version, f"etag-{version}", None, 1_000 + version)


def next_record(
    state: SourceState,
    items: Iterable[FetchItem | SourceFile | str] = (),
    *,
    carry: Iterable[FetchItem] = (),
    known: Iterable[SourceFile] = (),
    gone: Mapping[str, int] | None = None,
    cursor: Cursor | None = None,
) -> Record:
    """The record that comes next."""
    head = state.head
    assert head is not None
    work = tuple(_item(one) for one in items)
    return Record(
        seq=head.seq + 1,
        writer=state.writer,
        cursor=cursor or head.cursor,
        items=work,
        carry=tuple(carry),
        known=tuple(known),
        gone=tuple((gone or {}).items()),
        files=head.files + len(work),
        bytes=head.bytes + sum(item.bytes for item in work),
    )


def _item(one: FetchItem | SourceFile | str) -> FetchItem:
    if isinstance(one, FetchItem):
        return one
    return FetchItem(file(one) if isinstance(one, str) else one)


async def add(state: SourceState, *items: FetchItem | SourceFile | str, **fields: Any) -> Record:
    """Append a record."""
    record = next_record(state, items, **fields)
    await state.append(record)
    return record


class Model:
    """The known files, as a dict."""

    def __init__(self) -> None:
        self.files: dict[str, KnownFile] = {}
        self._carried: set[SourceFile] = set()

    def apply(self, record: Record) -> None:
        """Apply the changes by a record."""
        for key, gone_ms in record.gone:
            known = self.files.get(key)
            if known is not None and known.gone_ms is None:
                self.files[key] = replace(known, gone_ms=gone_ms)
        for item in record.items + record.carry:
            if item.file not in self._carried:
                self.files[item.file.key] = KnownFile(item.file, record.seq)
        for one in record.known:
            self.files[one.key] = KnownFile(one, record.seq)
        self._carried = {item.file for item in record.carry}

    def all(self) -> list[KnownFile]:
        """All files in the order of their keys."""
        return [self.files[key] for key in sorted(self.files)]


async def check_known(known: FileIndex, model: Model, *, forgotten_before_ms: int = -NO_TIME) -> None:
    """All look-ups agree with the model; files gone before a time may be there or not."""

    def same(found: Sequence[KnownFile], wanted: Sequence[KnownFile]) -> None:
        keys = {one.file.key for one in found}
        kept = [
            one for one in wanted if one.file.key in keys or one.gone_ms is None or one.gone_ms >= forgotten_before_ms
        ]
        assert list(found) == kept

    everything = model.all()
    keys = ["", *model.files, "zzz"]
    for after in sorted(keys)[:: max(1, len(keys) // 5)]:
        same(await known.page(after, count=1000), [one for one in everything if after < one.file.key])
    asked = [*model.files, "absent", "zzz"]
    found = await known.find(asked)
    assert all(key == one.file.key for key, one in found.items())
    same(sorted(found.values(), key=lambda one: one.file.key), everything)
    for count in (1, 3, 1000):
        same(await pages(known, count), everything)


async def pages(known: FileIndex, count: int) -> list[KnownFile]:
    """All files, page by page."""
    found: list[KnownFile] = []
    while page := await known.page(found[-1].file.key if found else "", count=count):
        assert len(page) <= count
        found += page
    return found
