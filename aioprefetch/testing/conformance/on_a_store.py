"""The checks over a store that is in use, without pytest: each over an empty root of its own, one after the other."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from aioprefetch.errors import NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import TRAITS, reason_to_skip
from aioprefetch.testing.conformance.whole import AccessorChecks, ReaderChecks

# A check that takes longer has failed: some servers never send a response.
CHECK_SECONDS_MAX = 120


class ChecksOnStore(AccessorChecks, ReaderChecks):
    """All checks; ``beside`` writes and reads whole objects as an Operator does, past the layers that are checked."""

    def __init__(self, beside: Any, lacks: Collection[str]) -> None:
        self._beside = beside
        self.lacks = frozenset(lacks)

    async def put_directly(self, path: str, data: bytes) -> None:
        """By ``beside``."""
        await self._beside.write(path, data)

    async def get_directly(self, path: str) -> bytes | None:
        """By ``beside``."""
        try:
            return bytes(await self._beside.read(path))
        except NotFound:
            return None


CHECK_NAMES = [name for owner in ChecksOnStore.__mro__ for name in vars(owner) if name.startswith("test_")]


async def run_checks(
    root: Callable[[str], tuple[Operator, Any]], lacks: Collection[str]
) -> AsyncIterator[tuple[str, str, str]]:
    """Run all checks over a store, each on what ``root`` makes of its number: an Operator, and what writes beside it.

    Gives of each its name, whether it is ``ok``, ``failed`` or ``skipped``, and why. ``lacks`` names `TRAITS` that the
    store is known to lack. What they write stays. A check that takes two minutes has failed.
    """
    for number, name in enumerate(CHECK_NAMES):
        operator, beside = root(str(number))
        check = getattr(ChecksOnStore(beside, lacks), name)
        async with operator:
            text, outcome = reason_to_skip(check, operator.capability, lacks) or "", "skipped"
            if not text and (text := await _failure_of(check(operator))):
                needed, _ = getattr(check, "conformance_needs", ((), ()))
                text, outcome = " ".join([text, *(f"--lacks {need}?" for need in needed if need in TRAITS)]), "failed"
        yield name, outcome if text else "ok", text or check.__doc__.partition("\n")[0]


async def _failure_of(check: Any) -> str:
    """The error that a check ends with, on a line, or the line of the check where an assertion says nothing."""
    try:
        async with asyncio.timeout(CHECK_SECONDS_MAX):
            await check
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.line or "" for frame in frames if "conformance" in frame.filename]
        return f"{type(error).__name__}: {' '.join((str(error) or lines[-1]).split())}"
    return ""
