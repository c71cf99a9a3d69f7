"""The base of the conformance classes: the hooks of a store, the rule by which tests are skipped, and what tests share.

A test is marked with the lines of the conformance lists that it stands for: `opendal:R9` is from the list of OpenDAL's
behaviour tests, `object_store:O1` from the tests of Rust's object_store, `s3a:P09` from Hadoop's contract tests for
S3A streams, `reliability:D06` a fault that block files must survive, `reliability:S35` a fault at the wire,
`reliability:W07` one of a change, `source:L5` a line of the design of the file source.
docs/reference/conformance.md explains the lists.

Shared are keys that break clients which quote, unquote or normalise paths wrongly, and layers that record, hold back or
fail the requests of a reader, so that tests need no timing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.errors import Error
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.options import OpenOptions
from aioprefetch.reader import RangeReader
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Capability, ReadRequest, Request

R = TypeVar("R", bound=Request)
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

CHECKED: dict[str, set[str]] = {}


def checks(*ids: str) -> Callable[[F], F]:
    """Mark a test as the check of these lines."""

    def mark(test: F) -> F:
        for line_id in ids:
            CHECKED.setdefault(line_id, set()).add(f"{test.__module__}.{test.__qualname__}")
        return test

    return mark


# --- keys and paths ---------------------------------------------------------------------------------------------------

SPECIAL_KEYS = (
    "with space and\u00a0another",
    "plus+sign",
    "percent%20encoded %",
    "hash#fragment",
    "question?mark=1&other",
    '" !@$^&()_+-=;\',.txt"',
    "über/日本語/\U0001f980",
    "brackets[0]{1}<2>|~`",
    "trailing ",
    "a%2Fb/%48%45LLO",
    "decomposed/e\u0301",
    "back\\slash",
    "colon:semicolon;equals=",
    "/".join(["k" * 200] * 5)[:900],  # S3 takes 1,024 bytes, including the root
)

DOUBLE_SLASH_KEYS = ("a//b", "/leading", "a///b")
ESCAPING_PATHS = ("../outside", "a/../../outside", "a/..", "..", ".", "./a", "a/./b")


# --- layers -----------------------------------------------------------------------------------------------------------


class _Before(WrappedAccessor):
    """Awaits a call before each request."""

    def __init__(self, inner: Accessor, call: Callable[[Request], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._call = call

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        await self._call(request)
        return await forward(request)


class RecordingLayer(Layer):
    """Records every request in `requests`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        """The live layer."""
        return _Before(inner, self._record)

    async def _record(self, request: Request) -> None:
        self.requests.append(request)

    @property
    def reads(self) -> list[ReadRequest]:
        """The recorded read requests."""
        return [request for request in self.requests if isinstance(request, ReadRequest)]


class GateLayer(Layer):
    """Holds the reads that `holds` selects, by default all, while closed; counts `arrived` and `cancelled` ones."""

    def __init__(self, holds: Callable[[ReadRequest], bool] = lambda request: True) -> None:
        self.holds = holds
        self.arrived = 0
        self.cancelled = 0
        self._open: asyncio.Event = asyncio.Event()
        self._change = asyncio.Condition()

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        """The live layer."""
        return _Before(inner, self._pass_through)

    def open(self) -> None:
        """Let all reads pass, waiting and later ones."""
        self._open.set()

    async def wait_for_arrivals(self, number: int) -> None:
        """Wait until ``number`` reads have arrived in total."""
        async with asyncio.timeout(30), self._change:
            await self._change.wait_for(lambda: self.arrived >= number)

    async def wait_for_cancellations(self, number: int) -> None:
        """Wait until ``number`` of the held reads were cancelled."""
        async with asyncio.timeout(30), self._change:
            await self._change.wait_for(lambda: self.cancelled >= number)

    async def _pass_through(self, request: Request) -> None:
        if not isinstance(request, ReadRequest) or not self.holds(request):
            return
        self.arrived += 1
        await self._tell()
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            await self._tell()
            raise

    async def _tell(self) -> None:
        async with self._change:
            self._change.notify_all()


class FailingLayer(Layer):
    """Fails the reads that `fails` selects, with the error that `error` returns. `failed` counts them."""

    def __init__(self, error: Callable[[ReadRequest], Error], fails: Callable[[ReadRequest], bool]) -> None:
        self.error = error
        self.fails = fails
        self.failed = 0

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        """The live layer."""
        return _Before(inner, self._fail)

    async def _fail(self, request: Request) -> None:
        if isinstance(request, ReadRequest) and self.fails(request):
            self.failed += 1
            raise self.error(request)


# --- the base ---------------------------------------------------------------------------------------------------------

# Traits that a store may lack although no capability covers them. A subclass names the missing ones in `lacks`.
TRAITS = {
    "double_slash_keys": "keys with `//` or a slash at the start are kept as given",
    "empty_directories": "a directory that holds nothing can be made, seen, and deleted with a slash",
    "keeps_versions": "an overwritten object stays readable by its version id",
    "enforces_write_conditions": "If-Match and If-None-Match are obeyed on a write",
    "enforces_copy_conditions": "the ETag of the source is obeyed by a copy",
    "enforces_delete_conditions": "If-Match is obeyed by a deletion",
    "request_counts": "each request of the reader is one request at the store, and `request_counts` shows it",
    "atomic_conditions": "the condition of a write is compared in the step in which it is done",
    "presigns_headers": "a presigned URL may name headers of its response",
    "replaces_at_once": "what was replaced cannot be read any more: neither the store nor a cache keeps old versions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """The number of requests to a store: GET for object bytes, HEAD, and pages of listings."""

    get: int = 0
    head: int = 0
    list: int = 0

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        return RequestCounts(get=self.get - earlier.get, head=self.head - earlier.head, list=self.list - earlier.list)


@dataclass(slots=True)
class Spent:
    """The requests inside a `counting` block, set at the end of the block."""

    counts: RequestCounts | None = None

    @property
    def get(self) -> int:
        """GETs."""
        assert self.counts is not None
        return self.counts.get

    @property
    def head(self) -> int:
        """HEADs."""
        assert self.counts is not None
        return self.counts.head

    @property
    def none(self) -> bool:
        """Whether no request was sent."""
        return self.counts == RequestCounts()


def needs(*names: str, without: Iterable[str] = ()) -> Callable[[F], F]:
    """Run a test only with all these capabilities and traits, and without those in `without`.

    A name is a field of `Capability` or a key of `TRAITS`; anything else is a `ValueError`.
    """
    absent = tuple(without)
    known_names = set(Capability.__dataclass_fields__) | set(TRAITS)
    if unknown := (set(names) | set(absent)) - known_names:
        raise ValueError(f"neither a capability nor a trait: {sorted(unknown)}")

    def mark(test: F) -> F:
        test.conformance_needs = (names, absent)  # type: ignore[attr-defined]
        return test

    return mark


def reason_to_skip(test: Callable[..., Any], capability: Capability, lacks: Iterable[str]) -> str | None:
    """The reason to skip a test on a stack with this capability, None to run it. No other rule skips tests."""
    names, absent = getattr(test, "conformance_needs", ((), ()))
    present = {name for name in Capability.__dataclass_fields__ if getattr(capability, name)} | (
        set(TRAITS) - set(lacks)
    )
    if missing := [name for name in names if name not in present]:
        return f"needs {', '.join(missing)}"
    if surplus := [name for name in absent if name in present]:
        return f"only without {', '.join(surplus)}"
    return None


def skipped_tests(suite: type, capability: Capability, lacks: Iterable[str] = ()) -> list[str]:
    """The sorted names of the tests that are skipped on a stack with this capability, for a service to pin."""
    tests = {name: getattr(suite, name) for name in dir(suite) if name.startswith("test_")}
    return sorted(name for name, test in tests.items() if reason_to_skip(test, capability, lacks))


class ConformanceSuite:
    """The base of the checks: each is a method that gets an Operator over an empty root.

    The hooks are `put_directly`, `get_directly` and, if the store records its requests, `request_counts`. `lacks` names
    the missing `TRAITS` of the store. It needs no pytest: `aioprefetch doctor --conformance` runs it too.
    """

    lacks: frozenset[str] = frozenset()

    def __init_subclass__(cls) -> None:
        """Refuse two tests of one name: the second would silently replace the first."""
        super().__init_subclass__()
        owners: dict[str, type] = {}
        for base in cls.__bases__:
            for name in (name for name in dir(base) if name.startswith("test_")):
                owner = next(ancestor for ancestor in base.__mro__ if name in vars(ancestor))
                if owners.setdefault(name, owner) is not owner:
                    raise TypeError(f"{name} is a test of {owner.__name__} and of {owners[name].__name__}")

    async def put_directly(self, path: str, data: bytes) -> None:
        """Place an object under the operator's root without the code under test."""
        raise NotImplementedError

    async def get_directly(self, path: str) -> bytes | None:
        """The bytes of an object under the operator's root, None if it is missing, without the code under test."""
        raise NotImplementedError

    @asynccontextmanager
    async def reading(
        self, operator: Operator, data: bytes, **options: Unpack[OpenOptions]
    ) -> AsyncIterator[RangeReader]:
        """A reader of an object `k` with these bytes."""
        await self.put_directly("k", data)
        async with operator.reader("k", **options) as reader:
            yield reader

    def request_counts(self, operator: Operator) -> RequestCounts:
        """The requests so far, from the store's own log or otherwise from the operator's counters."""
        counters = operator.statistics
        return RequestCounts(
            get=counters["action_http_get_request"],
            head=counters["action_http_head_request"],
            list=counters["object_list_request"],
        )

    @contextmanager
    def counting(self, operator: Operator) -> Iterator[Spent]:
        """Count the requests sent inside the block."""
        spent, before = Spent(), self.request_counts(operator)
        yield spent
        spent.counts = self.request_counts(operator) - before
