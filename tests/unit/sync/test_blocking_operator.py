"""BlockingOperator: every verb, hits on the caller's thread, a bounded set of readers, forks and pickles."""

import io
import pickle
import random
import threading
from collections.abc import Callable, Iterator

import pytest

from aioprefetch.errors import (
    Closed,
    ConfigInvalid,
    InvalidArgument,
    InvalidType,
    IsADirectory,
    NotFound,
    ObjectChanged,
    RangeNotSatisfied,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.reader import RangeReader
from aioprefetch.sync import BlockingOperator, SyncFile, run
from aioprefetch.sync.loop_thread import LoopThread
from aioprefetch.values import Entry

DATA = random.Random(5).randbytes(50_000)


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each call that crossed to the loop thread."""
    crossed: list[str] = []
    run_there = LoopThread.run

    def counted(self: LoopThread, coroutine: object, *arguments: object) -> object:
        crossed.append(repr(coroutine))
        return run_there(self, coroutine, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LoopThread, "run", counted)
    return crossed


def test_the_verbs(blocking: BlockingOperator) -> None:
    written = blocking.write("dir/a", DATA, content_type="x/y")
    assert blocking.stat("dir/a").size == written.size == len(DATA)
    assert blocking.read("dir/a", offset=10, size=20) == DATA[10:30]
    assert bytes(blocking.view("dir/a", suffix=5)) == DATA[-5:]
    buffer = bytearray(7)
    assert blocking.read_into("dir/a", 3, buffer) == 7
    assert bytes(buffer) == DATA[3:10]
    assert blocking.read_ranges("dir/a", [(5, 9), (0, 2)]) == [DATA[5:9], DATA[:2]]
    assert [bytes(view) for view in blocking.view_ranges("dir/a", [(1, 4)])] == [DATA[1:4]]
    blocking.copy("dir/a", "dir/b")
    assert [entry.path for entry in blocking.list("dir/")] == ["dir/a", "dir/b"]
    with blocking.open("dir/b") as file:
        assert file.read() == DATA
    blocking.delete("dir/a")
    assert (blocking.exists("dir/a"), blocking.exists("dir/b")) == (False, True)
    blocking.delete_all("dir/")
    assert list(blocking.list("", recursive=True)) == []
    assert blocking.capability.read
    assert blocking.info == blocking.operator.info


def test_a_file_by_hadoops_keys(blocking: BlockingOperator) -> None:
    """The same keys, checks and hints as on a loop; what awaiting raises there is raised by build()."""
    blocking.write("k", DATA)
    builder = blocking.open_file("k").opt("fs.option.openfile.read.policy", "random").must("fs.s3a.prefetch.enabled", 1)
    builder = builder.with_status(blocking.stat("k")).opt_long("fs.option.openfile.length", 10)
    assert repr(builder).startswith("<BlockingOpenFileBuilder 'k' fs.option.openfile.read.policy='random'")
    with builder.build() as file:
        assert isinstance(file, SyncFile)
        assert (file.size, file.etag) == (len(DATA), blocking.stat("k").etag)
        assert file.read_at(10, 20) == DATA[10:30]
        assert file.statistics["stream_read_bytes"] == 20
    with blocking.open_file("k").opt_long("fs.option.openfile.length", 10).build() as file:
        assert file.read() == DATA[:10]
    with pytest.raises(ConfigInvalid, match=r"did you mean 'fs\.option\.openfile\.length'"):
        blocking.open_file("k").must("fs.option.openfile.lenght", 1).build()
    with pytest.raises(IsADirectory) as caught:
        blocking.open_file("dir/").build()
    assert caught.value.operation == "open_file"
    with pytest.raises(NotFound):
        blocking.open_file("k").with_status({"name": "k", "type": "directory"}).build()
    with pytest.raises(InvalidType):
        blocking.open_file(5)  # type: ignore[arg-type]
    late = blocking.open_file("k")
    blocking.close()
    for call in (late.build, lambda: blocking.open_file("k")):
        with pytest.raises(Closed):
            call()


def test_an_iterable_is_written_from_a_worker_thread(blocking: BlockingOperator) -> None:
    threads: set[str] = set()

    def parts() -> Iterator[bytes]:
        for start in range(0, len(DATA), 9999):
            threads.add(threading.current_thread().name)
            yield DATA[start : start + 9999]

    blocking.write("k", parts())
    assert blocking.read("k") == DATA
    assert "aioprefetch-sync" not in threads


def test_a_failing_iterable_writes_nothing(blocking: BlockingOperator) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half"
        raise LookupError("the other half is missing")

    with pytest.raises(LookupError, match="other half"):
        blocking.write("k", parts())
    assert not blocking.exists("k")


def test_text_is_no_data(blocking: BlockingOperator) -> None:
    with pytest.raises(InvalidType):
        blocking.write("k", "text")  # type: ignore[arg-type]


def test_a_long_listing_crosses_in_batches(blocking: BlockingOperator, crossings: list[str]) -> None:
    for number in range(50):
        blocking.write(f"d/{number:03}", b"")
    crossings.clear()
    assert [entry.path for entry in blocking.list("d/")] == [f"d/{number:03}" for number in range(50)]
    assert len(crossings) <= 2


def test_a_listing_may_be_left_early(blocking: BlockingOperator) -> None:
    blocking.write("a", b"")
    blocking.write("b", b"")
    with blocking.list() as entries:
        assert next(entries).path == "a"
    assert list(entries) == []
    entries.close()


def test_entries_before_an_error_come_before_it(blocking: BlockingOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        closed = False
        left = 2

        async def __anext__(self) -> Entry:
            if not self.left:
                raise OSError("the listing broke off")
            self.left -= 1
            return Entry(path=f"entry {self.left}", size=0)

        async def aclose(self) -> None:
            self.closed = True

    broken = Broken()
    monkeypatch.setattr(Operator, "list", lambda *arguments, **options: broken)
    with blocking.list() as entries:
        assert [next(entries).path, next(entries).path] == ["entry 1", "entry 0"]
        with pytest.raises(OSError, match="broke off"):
            next(entries)
    assert broken.closed


def test_hits_of_read_at_stay_on_the_callers_thread(blocking: BlockingOperator, crossings: list[str]) -> None:
    blocking.write("k", DATA)
    oracle = io.BytesIO(DATA)
    assert blocking.read_at("k", 0, 4096) == DATA[:4096]
    crossings.clear()
    for offset, size in ((0, 4096), (17, 99), (4000, 96), (len(DATA) + 1, 5), (3, 0)):
        oracle.seek(offset)
        assert blocking.read_at("k", offset, size) == oracle.read(size)
    assert crossings == []
    assert blocking.read_at("k", 40_000, 50_000) == DATA[40_000:]


def test_read_at_refuses_nonsense(blocking: BlockingOperator) -> None:
    for offset, size in ((-1, 1), (0, -1)):
        with pytest.raises(ValueError, match="between 0 and"):
            blocking.read_at("k", offset, size)
    with pytest.raises(NotFound):
        blocking.read_at("k", 0, 1)
    with pytest.raises(InvalidArgument, match="readers_max"):
        BlockingOperator(blocking.operator, readers_max=0)


def test_read_at_sees_its_own_writes(blocking: BlockingOperator) -> None:
    changes: list[Callable[[], object]] = [
        lambda: blocking.write("k", b"second"),
        lambda: blocking.copy("other", "k"),
    ]
    for change in changes:
        blocking.write("k", b"first")
        blocking.write("other", b"second")
        assert blocking.read_at("k", 0, 10) == b"first"
        change()
        assert blocking.read_at("k", 0, 10) == b"second"
    blocking.write("dir/k", b"there")
    assert blocking.read_at("dir/k", 0, 10) == b"there"
    blocking.delete_all("dir/")
    with pytest.raises(NotFound):
        blocking.read_at("dir/k", 0, 10)


def test_read_at_follows_an_object_that_another_has_changed(blocking: BlockingOperator) -> None:
    """Bytes of two versions never mix: the read is done once more on the new version."""
    blocking.write("k", b"a" * 20_000)
    assert blocking.read_at("k", 0, 10) == b"a" * 10
    run(blocking.operator.write("k", b"b" * 20_000))
    assert blocking.read_at("k", 4090, 10) == b"b" * 10
    with blocking.open("k") as file:
        assert file.read(10) == b"b" * 10
        run(blocking.operator.write("k", b"c" * 20_000))
        with pytest.raises(ObjectChanged):
            file.read_at(10_000, 10)


def test_readers_are_bounded_and_closed_on_eviction(operator: Operator) -> None:
    with BlockingOperator(operator, readers_max=3) as blocking:
        for number in range(10):
            blocking.write(f"k{number}", b"%d" % number)
        for number in range(10):
            assert blocking.read_at(f"k{number}", 0, 5) == b"%d" % number
        statistics = blocking.statistics
        assert (statistics["stream_read_opened"], statistics["stream_read_closed"]) == (10, 7)


def test_many_threads_on_few_readers(operator: Operator) -> None:
    """Readers are evicted while others still read through them; every byte is right all the same."""
    contents = {f"k{number}": random.Random(number).randbytes(9000) for number in range(6)}
    failures: list[object] = []
    with BlockingOperator(operator, readers_max=2) as blocking:
        for path, content in contents.items():
            blocking.write(path, content)

        def read(seed: int) -> None:
            noise = random.Random(seed)
            for _ in range(100):
                path, offset, size = noise.choice(list(contents)), noise.randrange(9000), noise.randrange(5000)
                try:
                    if blocking.read_at(path, offset, size) != contents[path][offset : offset + size]:
                        failures.append((path, offset, size))
                except Exception as error:
                    failures.append(error)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        statistics = blocking.statistics
        assert statistics["stream_read_opened"] - statistics["stream_read_closed"] == 2


def test_a_closed_operator_refuses_and_may_be_closed_again(operator: Operator) -> None:
    blocking = BlockingOperator(operator)
    blocking.write("k", b"x")
    blocking.close()
    blocking.close()
    for call in (lambda: blocking.read("k"), lambda: blocking.read_at("k", 0, 1), lambda: blocking.open("k")):
        with pytest.raises(Closed, match="the operator is closed"):
            call()
    with pytest.raises(Closed):
        blocking.list()


def test_two_of_one_operator_close_each_for_itself(operator: Operator, crossings: list[str]) -> None:
    """As threads of a web server use one operator: the end of one ends neither reads nor memory of the other."""
    BlockingOperator(operator).write("k", DATA)
    started, released = threading.Event(), threading.Event()

    def parts() -> Iterator[bytes]:
        yield b"1"
        started.set()
        assert released.wait(10)
        yield b"2"

    with BlockingOperator(operator) as first, BlockingOperator(operator) as second:
        assert first.read_at("k", 0, 5) == second.read_at("k", 0, 5) == DATA[:5]
        writer = threading.Thread(target=second.write, args=("w", parts()))
        writer.start()
        assert started.wait(10)
        first.close()
        crossings.clear()
        assert second.read_at("k", 5, 5) == DATA[5:10]
        assert crossings == []
        released.set()
        writer.join()
        assert second.read("w") == b"12"
        statistics = operator.statistics
        assert statistics["stream_read_opened"] - statistics["stream_read_closed"] == 1


def test_a_reader_that_fails_to_close_leaves_nothing_else_open(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other readers are closed, and its use of the operator ends."""
    held: list[Operator] = []
    close_operator, close_reader = Operator.aclose, RangeReader.aclose

    async def note(self: Operator) -> None:
        held.append(self)
        await close_operator(self)

    async def fail(self: RangeReader) -> None:
        await close_reader(self)
        raise OSError("it does not close")

    monkeypatch.setattr(Operator, "aclose", note)
    monkeypatch.setattr(RangeReader, "aclose", fail)
    blocking = BlockingOperator(operator)
    for path in ("a", "b"):
        blocking.write(path, DATA)
        blocking.read_at(path, 0, 1)
    blocking.close()
    assert len(held) == 1
    statistics = operator.statistics
    assert statistics["stream_read_opened"] == statistics["stream_read_closed"] == 2


def test_it_pickles_as_its_operator(blocking: BlockingOperator) -> None:
    blocking.write("k", b"x")
    blocking.read_at("k", 0, 1)
    with pickle.loads(pickle.dumps(blocking)) as copy:
        assert copy.read_at("k", 0, 1) == b"x"


def test_errors_come_through(blocking: BlockingOperator) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        blocking.read("nowhere")
    blocking.write("k", b"x")
    with pytest.raises(RangeNotSatisfied):
        blocking.read("k", offset=5)


FORK = """
import os
from multiprocessing import get_context
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.reader import RangeReader
from aioprefetch.sync import BlockingOperator

bo = BlockingOperator(Operator.from_uri("memory://fork", block_bytes=4096))
data = bytes(range(256)) * 100
bo.write("k", data)
file = bo.open("k")
assert bo.read_at("k", 100, 5) == file.read_at(100, 5) == data[100:105]
file.seek(7)

def use():
    assert bo.read_at("k", 9000, 300) == data[9000:9300]
    assert bo.read("k") == data
    assert file.read(300) == data[7:307]
    assert file.read_at(20000, 10) == data[20000:20010]
    assert [entry.path for entry in bo.list()] == ["k"]
    file.close()
    bo.close()

child = os.fork()
if not child:
    code = 1
    try:
        use()
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
process = get_context("fork").Process(target=use)
process.start()
process.join(30)
assert process.exitcode == 0, process.exitcode
use()
print("all three")
"""


def test_parent_and_forked_children_read_the_same(program: Callable[[str], str]) -> None:
    assert program(FORK) == "all three\n"


FORK_WHILE_BUSY = """
import os, threading
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.reader import RangeReader
from aioprefetch.sync import BlockingOperator

bo = BlockingOperator(Operator.from_uri("memory://busy"))
bo.write("k", b"0123456789")
file = bo.open("k")
file.read(2)
held, done = threading.Event(), threading.Event()

def hold():
    with file._cursor, bo._readers._lock:
        held.set()
        done.wait(30)

thread = threading.Thread(target=hold)
thread.start()
held.wait(30)
child = os.fork()
if not child:
    code = 1
    try:
        assert file.read(3) == b"234"
        assert bo.read_at("k", 0, 1) == b"0"
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
done.set()
thread.join()
assert file.read(3) == b"234"
file.close()
bo.close()
print("both")
"""


def test_a_child_does_not_wait_for_locks_that_its_parent_held(program: Callable[[str], str]) -> None:
    assert program(FORK_WHILE_BUSY) == "both\n"


def test_a_listing_is_collected_as_one_list(blocking: BlockingOperator) -> None:
    for path in ("a", "b", "c"):
        blocking.write(path, b"x")
    listing = blocking.list()
    assert next(listing).path == "a"
    assert [entry.path for entry in listing.collect()] == ["b", "c"]
    assert listing.collect() == []
