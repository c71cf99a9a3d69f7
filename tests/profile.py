"""How much the tests try: `quick` by default, `full` by `make test-full` and in CI, `search` for new examples.

`AIOPREFETCH_TESTS` chooses. `quick` checks every rule; `full` checks it in every combination and with every seed;
`search` draws random examples, ten times as many, and never the same ones twice. Cases that `make test` leaves to CI
have the mark `full`: they run where a file is named, so that mutants meet all of them.
"""

import asyncio
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Test = TypeVar("Test", bound=Callable[..., Any])

PROFILES = ("quick", "full", "search")
PROFILE = os.environ.get("AIOPREFETCH_TESTS", "quick")
if PROFILE not in PROFILES:
    raise ValueError(f"AIOPREFETCH_TESTS={PROFILE!r} must be one of {', '.join(PROFILES)}")
IS_FULL = PROFILE != "quick"
# What other libraries ask of us, what needs a JVM, and whole runs of type checkers: in the full profile alone.
FULL_FOLDERS = ("libraries", "spark", "typed")


def chosen(*, quick: T, full: T, search: T | None = None) -> T:
    """A size, or a list of parameters, for the profile at hand; ``search`` has that of ``full`` where none is given."""
    if PROFILE == "search" and search is not None:
        return search
    return full if IS_FULL else quick


def few(cases: Iterable[T], kept: Callable[[int, T], bool] = lambda number, case: number == 0) -> list[Any]:
    """Cases of one argument, of which `make test` runs the first, or those that are ``kept``; the others are `full`."""
    return [pytest.param(case, marks=[] if kept(n, case) else pytest.mark.full) for n, case in enumerate(cases)]


def few_rows(cases: Iterable[Sequence[Any]], every: int) -> list[Any]:
    """The same for cases of several arguments: `make test` runs the first and each ``every``-th behind it."""
    return [pytest.param(*case, marks=pytest.mark.full if n % every else []) for n, case in enumerate(cases)]


def in_turns(ones: Iterable[Any], others: Sequence[Any]) -> list[Any]:
    """Each of the ones with each of the others: `make test` runs each of the ones once, and the others take turns."""
    return [
        pytest.param(one, other, marks=[] if n % len(others) == m else pytest.mark.full)
        for n, one in enumerate(ones)
        for m, other in enumerate(others)
    ]


def each_of(names: str | Sequence[str], cases: Iterable[Any], *, at_once: bool = False) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, but all cases are one test: for cases that need no fixture of their own.

    A test of its own takes five milliseconds more. Those that wait most of their time, as for a server that hangs, run
    ``at_once``. The error of a case says which one it is of.
    """
    named = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [dict(zip(named, case if len(named) > 1 else [case], strict=True)) for case in cases]
    assert table, f"there is no case of {names}"

    def decorate(test: Test) -> Test:
        given = inspect.signature(test)
        left = [parameter for name, parameter in given.parameters.items() if name not in named]

        @functools.wraps(test)
        def run(*arguments: Any, **fixtures: Any) -> None:
            for case in table:
                with _saying(case):
                    test(*arguments, **fixtures, **case)

        async def run_one(case: dict[str, Any], *arguments: Any, **fixtures: Any) -> None:
            with _saying(case):
                await test(*arguments, **fixtures, **case)

        @functools.wraps(test)
        async def run_async(*arguments: Any, **fixtures: Any) -> None:
            calls = [functools.partial(run_one, case, *arguments, **fixtures) for case in table]
            if not at_once:
                for call in calls:
                    await call()
                return
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(call())

        made: Any = run_async if inspect.iscoroutinefunction(test) else run
        made.__signature__ = given.replace(parameters=left)
        decorated: Test = made
        return decorated

    return decorate


@contextmanager
def _saying(case: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"with {case}")
        raise


def combinations(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Every combination of the axes; under `quick` only so many that each pair of values of two axes occurs."""
    product = list(itertools.product(*axes))
    return product if IS_FULL else pairwise(product)


def pairwise(product: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A few of the combinations, in their order, that together have every pair of values that all of them have."""
    missing = {pair for row in product for pair in _pairs(row)}
    kept = []
    while missing:
        best = max(range(len(product)), key=lambda index: len(missing.intersection(_pairs(product[index]))))
        missing.difference_update(_pairs(product[best]))
        kept.append(best)
    return [product[index] for index in sorted(kept)]


def _pairs(row: tuple[Any, ...]) -> set[tuple[int, int, str, str]]:
    named = [repr(value) for value in row]
    return {(i, j, named[i], named[j]) for i, j in itertools.combinations(range(len(row)), 2)}
