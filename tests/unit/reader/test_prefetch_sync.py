"""Files of ap.sync look ahead too, although their hits are served on the caller's thread, without the loop."""

import io
from collections.abc import Callable, Iterator

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.sync import SyncFile, run
from aioprefetch.sync.loop_thread import LoopThread
from aioprefetch.testing.conformance.suite import RecordingLayer
from aioprefetch.testing.oracle import assert_same_bytes, content
from aioprefetch.values import ReadRequest, WriteRequest
from tests.stores.gated_reader import KIB, settle

BLOCK = 64 * KIB
BLOCKS = 32
SIZE = BLOCKS * BLOCK
CHUNK = 4 * KIB  # Divides a block: a read over an edge is copied together on the loop thread.
DATA = content(SIZE)

Crossings = Callable[[], int]


@pytest.fixture
def log() -> RecordingLayer:
    """Every request with its lane."""
    return RecordingLayer()


@pytest.fixture
def operator(log: RecordingLayer) -> Operator:
    """An operator over one object of 32 blocks, with room for all of them."""
    service = Memory()
    service.store.put(WriteRequest(path="k"), DATA)
    return Operator(service, block_bytes=BLOCK, memory_bytes=2 * SIZE, prefetch_blocks=8).layer(log)


@pytest.fixture
def file(operator: Operator) -> Iterator[SyncFile]:
    """The object as a file."""
    with SyncFile(operator, "k") as opened:
        yield opened
    run(operator.aclose())


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> Crossings:
    """How many calls have gone to the loop's thread so far."""
    seen = 0
    inside = LoopThread.run

    def counted(self: LoopThread, *arguments: object) -> object:
        nonlocal seen
        seen += 1
        return inside(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LoopThread, "run", counted)
    return lambda: seen


def bytes_of(reads: list[ReadRequest]) -> int:
    """How much they ask for."""
    return sum(min(one.size or 0, SIZE - one.offset) for one in reads)


def quiet() -> None:
    """Let the loop's thread come to an end with everything that was asked of it."""
    run(settle(60))


def test_after_the_ramp_sequential_reads_are_hits_and_the_window_goes_on(
    file: SyncFile, log: RecordingLayer, crossings: Crossings
) -> None:
    """A consumer that is slower than the store waits for the first blocks alone; all others came in the window."""
    parts = []
    before = crossings()
    quiets = 0
    while part := file.read(CHUNK):
        parts.append(part)
        quiet()
        quiets += 1
    assert_same_bytes(b"".join(parts), DATA)
    waited = crossings() - before - quiets
    assert waited <= 3
    demand, ahead = [[one for one in log.reads if one.lane == lane] for lane in ("demand", "prefetch")]
    assert bytes_of(demand) <= 2 * BLOCK
    assert bytes_of(demand) + bytes_of(ahead) == SIZE


@pytest.mark.parametrize("way", ["read", "readinto", "readline", "read_at", "buffered"])
def test_every_way_to_read_in_order_profits(file: SyncFile, log: RecordingLayer, way: str) -> None:
    """However fast the caller is: most requests are made ahead of it, and no byte is asked for twice."""
    found = io.BytesIO()
    if way == "buffered":
        with io.BufferedReader(file, 10_000) as buffered:
            while part := buffered.read(CHUNK):
                found.write(part)
    else:
        while part := read_one(file, way, found.tell()):
            found.write(part)
    assert_same_bytes(found.getvalue(), DATA)
    assert bytes_of(log.reads) == SIZE
    assert bytes_of([one for one in log.reads if one.lane == "prefetch"]) >= SIZE // 2


def read_one(file: SyncFile, way: str, position: int) -> bytes:
    """The next piece."""
    if way == "readinto":
        buffer = bytearray(CHUNK)
        return bytes(buffer[: file.readinto(buffer)])
    if way == "readline":
        return file.readline(CHUNK)
    return file.read_at(position, CHUNK) if way == "read_at" else file.read(CHUNK)


def test_hits_never_go_to_the_loop_thread(file: SyncFile, crossings: Crossings) -> None:
    """Also those that move the window on."""
    for _ in range(5):  # A quarter of the block in order is a run.
        file.read(CHUNK)
    quiet()
    before = crossings()
    resident = BLOCK * 2
    while file.tell() + CHUNK <= resident:
        at = file.tell()
        assert file.read(CHUNK) == DATA[at : at + CHUNK]
    assert crossings() == before


def test_a_closed_file_leaves_no_request_behind(operator: Operator, log: RecordingLayer) -> None:
    """Hits reported the window to the loop, and the file was closed before the loop came to it."""
    for _ in range(20):
        file = SyncFile(operator, "k")
        file.read(BLOCK)
        quiet()
        file.read(CHUNK)
        file.close()
    quiet()

    async def left() -> tuple[int, int]:
        budget = operator.runtime().budget
        assert budget.reclaim is not None
        budget.reclaim(budget.used_bytes, "demand")
        return budget.used_bytes, budget.waiting

    assert run(left()) == (0, 0)
    run(operator.aclose())


@pytest.mark.parametrize("seeks_first", [False, True])
@pytest.mark.parametrize("step", [BLOCK // 16, BLOCK // 4, BLOCK // 2])
def test_a_long_stream_holds_its_window_and_little_more(step: int, seeks_first: bool) -> None:
    """The marks that hits pass reach the loop's thread late, and a seek to the end tells the size alone."""
    blocks = 160
    data = content(blocks * BLOCK)
    service = Memory()
    service.store.put(WriteRequest(path="k"), data)
    operator = Operator(service, block_bytes=BLOCK, memory_bytes=2 * (blocks - 1) * BLOCK, prefetch_blocks=4)
    with SyncFile(operator, "k", {"size": len(data)}) as file:
        if seeks_first:
            assert file.seek(0, io.SEEK_END) == file.tell() == len(data)
            file.seek(0)
        parts = []
        while part := file.read(step):
            parts.append(part)
        quiet()
        assert_same_bytes(b"".join(parts), data)

        async def used_bytes() -> int:
            return operator.runtime().budget.used_bytes

        assert run(used_bytes()) <= blocks // 4 * BLOCK
    run(operator.aclose())
