"""The base of the conformance classes: the hooks of a store, and the rule by which tests are skipped."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.values import Capability

F = TypeVar("F", bound=Callable[..., Any])

# Traits that a store may lack although no capability covers them. A subclass names the missing ones in `lacks`.
TRAITS = {
    "double_slash_keys": "keys with `//` or a slash at the start are kept as given",
    "empty_directories": "a directory that holds nothing can be made, seen, and deleted with a slash",
    "keeps_versions": "an overwritten object stays readable by its version id",
    "enforces_write_conditions": "If-Match and If-None-Match are obeyed on a write",
    "request_counts": "each request of the reader is one request at the store, and `request_counts` shows it",
    "replaces_at_once": "what was replaced cannot be read any more: neither the store nor a cache keeps old versions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """The number of requests to a store: GET for object bytes, HEAD, and pages of listings."""

    get: int = 0
    head: int = 0
    list: int = 0

    def __sub__(self, earlier: "RequestCounts") -> "RequestCounts":
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
    """The base of the suites. Subclass a suite and implement the hooks, and pytest runs its tests against your store.

    The hooks are `operator` (a fixture), `put_directly`, `get_directly` and, if the store records its requests,
    `request_counts`. `lacks` names the missing `TRAITS` of the store.
    """

    pytestmark = pytest.mark.asyncio
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

    @pytest.fixture
    async def operator(self) -> Operator:
        """An Operator over an empty root, closed after the test. A subclass may make it a generator fixture."""
        raise NotImplementedError("a conformance class must provide the fixture 'operator'")

    async def put_directly(self, path: str, data: bytes) -> None:
        """Place an object under the operator's root without the code under test."""
        raise NotImplementedError

    async def get_directly(self, path: str) -> bytes | None:
        """The bytes of an object under the operator's root, None if it is missing, without the code under test."""
        raise NotImplementedError

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

    @pytest.fixture(autouse=True)
    def _skip_by_capability(self, request: pytest.FixtureRequest, operator: Operator) -> None:
        reason = reason_to_skip(request.function, operator.capability, self.lacks)
        if reason is not None:
            pytest.skip(reason)
