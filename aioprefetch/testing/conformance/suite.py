"""What every conformance class builds on: the hooks a store has to provide, and the one rule by which tests skip."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.values import Capability

F = TypeVar("F", bound=Callable[..., Any])

# What a store may lack although no capability says so. A subclass names what is missing in `lacks`.
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
    """Requests that a store has answered: GET for object bytes, HEAD, and pages of listings."""

    get: int = 0
    head: int = 0
    list: int = 0

    def __sub__(self, earlier: "RequestCounts") -> "RequestCounts":
        return RequestCounts(get=self.get - earlier.get, head=self.head - earlier.head, list=self.list - earlier.list)


@dataclass(slots=True)
class Spent:
    """What was spent inside `counting`; filled in when the block ends."""

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
        """Whether no request was sent at all."""
        return self.counts == RequestCounts()


def needs(*names: str, without: Iterable[str] = ()) -> Callable[[F], F]:
    """Run a test only where all these capabilities and traits are there, and none of `without`.

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
    """Why a test cannot run on a stack with this capability, None when it can. The only rule by which tests skip."""
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
    """The names of the tests of a suite that skip on a stack with this capability, sorted: what a service pins."""
    tests = {name: getattr(suite, name) for name in dir(suite) if name.startswith("test_")}
    return sorted(name for name, test in tests.items() if reason_to_skip(test, capability, lacks))


class ConformanceSuite:
    """Subclass one of the suites, implement the hooks, and pytest runs its tests against your store.

    Hooks: `operator` (fixture), `put_directly`, `get_directly`; where the store keeps its own record of requests also
    `request_counts`. `lacks` names the `TRAITS` that the store does not have.
    """

    pytestmark = pytest.mark.asyncio
    lacks: frozenset[str] = frozenset()

    def __init_subclass__(cls) -> None:
        """Refuse two tests of one name: the second would silently take the place of the first."""
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
        """The bytes of an object under the operator's root, None where there is none, without the code under test."""
        raise NotImplementedError

    def request_counts(self, operator: Operator) -> RequestCounts:
        """Requests so far, from the store's own log where it has one, from the operator's counters otherwise."""
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
