"""The table of clauses: number and kind of each, the check that stands for it, and the scene that a check acts in."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from aioprefetch import RangeReader
from aioprefetch.operator.open_file import KEYS, OpenFileBuilder, PendingReader
from aioprefetch.reader.options import ReaderOptions
from tests.stores.gated_reader import KIB, Bench

BLOCK = 32 * KIB
SIZE = 32 * BLOCK - 1000

STANDARD = tuple(name for name in KEYS if name.startswith("fs.option.openfile."))
VENDORS = tuple(name for name in KEYS if name not in STANDARD)


@dataclass(frozen=True)
class Scene:
    """A store with the object "k" of ``SIZE`` bytes, which counts its requests, and what was logged."""

    store: Bench
    log: pytest.LogCaptureFixture

    @property
    def data(self) -> bytes:
        """The bytes of "k"."""
        return self.store.data

    @property
    def default(self) -> ReaderOptions:
        """The options of a reader that was given none."""
        return self.store.operator.reader("k").options

    @property
    def requests(self) -> tuple[int, int]:
        """GETs and HEADs so far."""
        return len(self.store.calls), len(self.store.gate.stats)

    def builder(self, path: str = "k", /, **options: object) -> OpenFileBuilder:
        """A builder; ``options`` are set by ``opt``, under ``fs.option.openfile.`` and with dots for underscores."""
        builder = self.store.operator.open_file(path)
        for name, value in options.items():
            builder.opt(f"fs.option.openfile.{name.replace('_', '.')}", value)
        return builder

    async def open(self, path: str = "k", /, **options: object) -> RangeReader:
        """A reader opened by these options."""
        return await self.builder(path, **options).build()

    async def set(self, key: str, value: object, *, must: bool = False) -> RangeReader:
        """A reader opened by one key."""
        builder = self.builder()
        return await (builder.must(key, value) if must else builder.opt(key, value)).build()

    def warnings(self) -> list[str]:
        """What was logged as a warning since the last call."""
        found = [record.getMessage() for record in self.log.records if record.levelname == "WARNING"]
        self.log.clear()
        return found


Check = Callable[[Scene], Awaitable[None]]
CHECKS: dict[int, Check] = {}
KINDS: dict[int, str] = {}


def clause(number: int, kind: str = "") -> Callable[[Check], Check]:
    """Register the check of a clause. ``kind``: M must, N must not, S should, Y may; none where the list has none."""

    def register(check: Check) -> Check:
        assert number not in CHECKS
        CHECKS[number], KINDS[number] = check, kind
        return check

    return register


def awaited(pending: PendingReader) -> RangeReader:
    """The reader, without a loop: awaiting it waits for nothing."""
    with pytest.raises(StopIteration) as end:
        pending.__await__().send(None)
    reader = end.value.value
    assert isinstance(reader, RangeReader)
    return reader


def policy_of(reader: RangeReader) -> str:
    """The name of the policy that arrived."""
    return reader.options.policy.name
