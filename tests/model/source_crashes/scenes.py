"""File sets that change while a query is killed again and again, and the rows that must come of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from aioprefetch.errors import Unavailable
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.source.fetch.cleaning import CleanOptions
from aioprefetch.source.fetch.source import FileSource, StateLocation
from aioprefetch.source.options import AdmissionOptions, ListOptions, PartitionOptions, StateOptions
from aioprefetch.source.values import SourceFile
from aioprefetch.values import WriteRequest
from tests.model.source_crashes.engine import Checkpoint, Engine, Row
from tests.model.source_crashes.strikes import KilledError, Process, StrikeLayer, Strikes

LIVES_MAX = 12
URL = "memory://scene/data"


class Bucket:
    """Objects written directly into the store, and each row that was ever in one."""

    def __init__(self) -> None:
        self.service = Memory()
        self.rows: Counter[Row] = Counter()

    def put(self, key: str, lines: int, text: str = "line") -> None:
        """Write an object with this number of lines."""
        rows = [f"{key} {text} {number}\n".encode() for number in range(lines)]
        etag = self.service.store.put(WriteRequest(path=key), b"".join(rows)).etag
        position = 0
        for row in rows:
            self.rows[key, etag, position, row] += 1
            position += len(row)

    def delete(self, *keys: str) -> None:
        for key in keys:
            self.service.store.remove(key)


@dataclass(frozen=True)
class Shape:
    """The history of the bucket, step by step, each after full delivery; and the options of the query."""

    name: str
    phases: Sequence[Callable[[Bucket], None]]
    limit: AdmissionOptions
    clean: bool = False
    available_now: bool = False

    def __str__(self) -> str:
        return self.name


def _many_small(bucket: Bucket) -> None:
    for number in range(12):
        bucket.put(f"b/{number:02}.jsonl", 2)


def _more_small(bucket: Bucket) -> None:
    bucket.put("a/late.jsonl", 1)
    bucket.put("c/next.jsonl", 1)


def _few_large(bucket: Bucket) -> None:
    bucket.put("a.jsonl", 40)
    bucket.put("b.jsonl.gz", 30)
    bucket.put("c.jsonl", 25)


def _mixed(bucket: Bucket) -> None:
    for name in ("b.jsonl", "d.jsonl", "f.gz", "h.jsonl"):
        bucket.put(name, 3)
    bucket.put("empty.jsonl", 0)
    bucket.put("marker/", 0)


def _changed(bucket: Bucket) -> None:
    bucket.put("a.jsonl", 20)
    bucket.put("d.jsonl", 2, "overwritten")
    bucket.put("empty.jsonl", 2, "filled")
    bucket.delete("b.jsonl", "f.gz")


def _changed_again(bucket: Bucket) -> None:
    bucket.put("b.jsonl", 2, "back")
    bucket.put("z.jsonl", 1)
    bucket.delete("h.jsonl")


SHAPES = (
    Shape("many small", (_many_small, _more_small), AdmissionOptions(files_max=5)),
    Shape("few large", (_few_large,), AdmissionOptions(bytes_max=300)),
    Shape("mixed", (_mixed, _changed, _changed_again), AdmissionOptions(files_max=3, bytes_max=200)),
    Shape("mixed, now", (_mixed, _changed), AdmissionOptions(files_max=3, bytes_max=200), available_now=True),
    Shape("cleaned", (_many_small, _more_small), AdmissionOptions(files_max=5), clean=True),
)


@dataclass
class Scene:
    """A bucket, a state, and queries with their checkpoints. A killed query is started again."""

    shape: Shape
    strikes: Strikes = field(default_factory=Strikes)
    bucket: Bucket = field(default_factory=Bucket)
    states: Memory = field(default_factory=Memory)
    directory: str = "state/"
    attach_to: str | None = None
    lives: int = 0

    async def play(self, checkpoint: Checkpoint) -> None:
        """All phases, one after the other."""
        for phase in self.shape.phases:
            phase(self.bucket)
            await self.come_to_the_end(checkpoint)

    async def come_to_the_end(self, checkpoint: Checkpoint) -> None:
        """Until everything is delivered, in as many lives as it takes."""
        while not await self.live(checkpoint):
            assert self.lives < LIVES_MAX, f"it does not come to an end: {self.strikes}"

    async def live(self, checkpoint: Checkpoint) -> bool:
        """One process on a checkpoint; ``False``: it was killed."""
        self.lives += 1
        process = Process(self.strikes)
        try:
            async with AsyncExitStack() as stack:
                await self.run(process, checkpoint, stack)
        except BaseException:
            if not process.is_dead and not self.strikes.mode.startswith("failed"):
                raise
            if not process.is_dead and not self.strikes.struck:
                raise
            return False
        return True

    async def run(self, process: Process, checkpoint: Checkpoint, stack: AsyncExitStack) -> None:
        """A query until it has nothing to do; a call that fails is made again on the same source."""
        operator = self.operator("bucket", process, self.bucket.service, stack)
        source = await self.open(process, operator, stack)
        engine = Engine(process, checkpoint, source, operator, self.shape.limit)
        while True:
            try:
                await engine.run(available_now=self.shape.available_now)
                break
            except Unavailable:
                continue
        await source.cleaner.finish()
        process.check()

    def operator(self, name: str, process: Process, service: Memory, stack: AsyncExitStack) -> Operator:
        """A store as a process sees it."""
        operator = Operator.bare(service).layer(StrikeLayer(name, process))
        stack.push_async_callback(operator.aclose)
        return operator

    async def open(self, process: Process, operator: Operator, stack: AsyncExitStack) -> FileSource:
        """The source of a process, closed with the stack."""
        states = self.operator("state", process, self.states, stack)
        source = await FileSource.open(
            operator=operator,
            state_operator=states,
            state_directory=self.directory,
            url=URL,
            list_options=ListOptions(interval_seconds=0, overwrites="reread", ahead_pages=1),
            partitioning=PartitionOptions(target_bytes=100),
            attach_to=None if self.attach_to is None else StateLocation(states, self.attach_to),
            can_split=can_split,
            clean=CleanOptions(mode="delete" if self.shape.clean else "off", in_flight=2),
            state_options=StateOptions(compact_records=4, keep_records=8),
        )

        async def close() -> None:
            with suppress(KilledError):
                await source.aclose()

        stack.push_async_callback(close)
        return source


def can_split(file: SourceFile) -> bool:
    return file.key.endswith(".jsonl")
