"""SyncFile is a complete raw file: the oracle is io.BytesIO, the judges are those who read files."""

import array
import asyncio
import gc
import io
import pickle
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Closed, ConfigInvalid, InvalidType, IsADirectory, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.reader import object_reads
from aioprefetch.sync import BlockingOperator, SyncFile, run
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ReadReply, ReadRequest
from tests.stores.verb_layer import VerbLayer

LINES = b"".join(b"line %d %s\n" % (number, b"x" * (number % 37)) for number in range(2000)) + b"no newline at the end"
SIZES = st.integers(-3, 12_000)


@pytest.fixture
def file(blocking: BlockingOperator) -> Any:
    """An open file over LINES, many blocks long."""
    blocking.write("lines", LINES)
    with blocking.open("lines") as file:
        yield file


class HeldReads(VerbLayer):
    """A layer under which no read ends."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        self.begun.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")


steps = st.one_of(
    st.tuples(st.just("read"), st.one_of(st.none(), SIZES)),
    st.tuples(st.just("readinto"), st.integers(0, 9_000)),
    st.tuples(st.just("readline"), st.one_of(st.none(), st.integers(-1, 60))),
    st.tuples(st.just("readlines"), st.sampled_from((None, -1, 0))),
    st.tuples(st.just("seek"), st.integers(0, len(LINES) + 5000)),
    st.tuples(st.just("seek_by"), st.integers(-9_000, 9_000)),
    st.tuples(st.just("seek_end"), st.integers(-len(LINES), 100)),
    st.tuples(st.just("next"), st.none()),
)


def test_a_directory_in_place_of_an_object_is_hinted_at(operator: Operator) -> None:
    with BlockingOperator(operator) as blocking:
        blocking.write("d/k", b"x")
        calls: list[Callable[[SyncFile], object]] = [
            lambda file: file.read(),
            lambda file: file.read_at(0, 1),
            lambda file: file.view_at(0, 1),
            lambda file: file.read_ranges([(0, 1)]),
            lambda file: file.size,
            lambda file: file.seek(0, io.SEEK_END),
        ]
        for call in calls:
            for path, hint in (("d", "'d' is a directory: a listing of 'd/' shows what is below it"), ("e", None)):
                with blocking.open(path) as file, pytest.raises(NotFound, match="no such object") as caught:
                    call(file)
                assert caught.value.context.get("hint") == hint


def take(file: Any, step: str, argument: Any) -> Any:
    if step == "readinto":
        buffer = bytearray(argument)
        count = file.readinto(buffer)
        return count, bytes(buffer[:count])
    if step == "seek_by":
        return file.seek(max(0, file.tell() + argument))
    if step == "seek_end":
        return file.seek(argument, io.SEEK_END)
    if step == "next":
        return next(file, None)
    return getattr(file, step)(argument)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(steps, max_size=30))
def test_it_does_what_bytes_io_does(blocking: BlockingOperator, script: list[tuple[str, Any]]) -> None:
    blocking.write("lines", LINES)
    oracle = io.BytesIO(LINES)
    with blocking.open("lines") as file:
        for step, argument in script:
            assert take(file, step, argument) == take(oracle, step, argument), (step, argument)
            assert file.tell() == oracle.tell()


@pytest.mark.parametrize("hint", [1, 8, 9, 10, 92, 93, 5000, 1 << 30])
def test_a_hint_means_what_it_means_for_files(file: SyncFile, hint: int) -> None:
    """BytesIO stops one line earlier than files do where the hint is met exactly."""
    oracle = io.BufferedReader(io.BytesIO(LINES))
    assert file.readlines(hint) == oracle.readlines(hint)
    assert file.tell() == oracle.tell()


def test_iteration_gives_every_line_and_fetches_no_byte_twice(blocking: BlockingOperator, file: SyncFile) -> None:
    assert list(file) == io.BytesIO(LINES).readlines()
    assert blocking.statistics["stream_read_total_bytes"] == len(LINES)


@pytest.mark.cost
def test_iteration_does_not_read_byte_by_byte(file: SyncFile) -> None:
    """The calls of this thread into the reader's memory: far fewer than lines."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        calls[frame.f_code.co_filename] += event == "call"

    sys.setprofile(count)
    try:
        assert sum(1 for _ in file) == 2001
    finally:
        sys.setprofile(None)
    assert 0 < calls[object_reads.__file__] < 50


def test_opening_and_seeking_send_nothing(blocking: BlockingOperator) -> None:
    with blocking.open("missing") as file:
        assert file.seek(1 << 40) == 1 << 40
        assert file.tell() == 1 << 40
        assert file.read(0) == b""
        with pytest.raises(NotFound):
            file.read(1)
        file.seek(0)
        blocking.write("missing", b"there now")
        assert file.read() == b"there now"


def test_seek_from_the_end_brings_the_tail_with_it(blocking: BlockingOperator, file: SyncFile) -> None:
    assert file.seek(-21, io.SEEK_END) == len(LINES) - 21
    assert file.read() == b"no newline at the end"
    assert blocking.statistics["stream_read_block_fetches"] == 1


@pytest.mark.parametrize(("offset", "whence"), [(-1, io.SEEK_SET), (-1, io.SEEK_CUR), (-len(LINES) - 1, io.SEEK_END)])
def test_a_negative_position_is_refused_and_the_cursor_stays(file: SyncFile, offset: int, whence: int) -> None:
    with pytest.raises(ValueError, match="negative"):
        file.seek(offset, whence)
    assert file.tell() == 0
    assert file.read(4) == b"line"


@pytest.mark.parametrize("call", [lambda f: f.seek(1.5), lambda f: f.read("3"), lambda f: f.read_at(True, 1)])
def test_wrong_types_are_type_errors(file: SyncFile, call: Callable[[SyncFile], Any]) -> None:
    with pytest.raises(TypeError):
        call(file)


def test_an_unknown_whence_is_refused(file: SyncFile) -> None:
    with pytest.raises(ValueError, match="whence"):
        file.seek(0, 7)


def test_readinto_takes_any_writable_buffer(file: SyncFile) -> None:
    numbers = array.array("q", [0] * 8)
    assert file.readinto(numbers) == 64
    assert numbers.tobytes() == LINES[:64]
    with pytest.raises(InvalidType):
        file.readinto(b"read-only")
    assert file.readinto(memoryview(bytearray(10))[3:7]) == 4
    assert file.tell() == 68


def test_positional_reads_leave_the_cursor_alone(file: SyncFile) -> None:
    file.seek(100)
    assert file.read_at(5, 10) == LINES[5:15]
    assert bytes(file.view_at(9000, 20)) == LINES[9000:9020]
    assert file.view_at(9000, 20).readonly
    assert file.read_ranges([(0, 4), (5000, 5010)]) == [LINES[:4], LINES[5000:5010]]
    assert file.read_at(len(LINES) + 5, 10) == b""
    assert file.tell() == 100


def test_what_is_read_into_a_buffer_is_copied_once(file: SyncFile) -> None:
    """From resident memory no view is made of it, which would be counted while the copy is under way."""
    buffer = bytearray(3000)
    for start in (0, 500):
        file.seek(start)
        assert file.readinto(buffer) == 3000
        assert buffer == LINES[start : start + 3000]
    assert file.statistics["stream_read_block_hits"] == 1


def test_arrow_may_hold_the_buffers_of_a_file_larger_than_memory(
    random_name: Callable[[], str],
) -> None:
    """Its threads hold what they were given until they get more; that must never be what they wait for."""
    table = pa.table({f"c{number}": [float(row * number) for row in range(20_000)] for number in range(8)})
    parquet = io.BytesIO()
    pq.write_table(table, parquet, row_group_size=4000, use_dictionary=False, compression="none")
    operator = Operator.from_uri(
        f"memory://{random_name()}", memory_bytes=256 << 10, block_bytes=32 << 10, budget_wait_seconds=5
    )
    with BlockingOperator(operator) as blocking:
        blocking.write("t", parquet.getvalue())
        with blocking.open("t") as file:
            held = list(iter(lambda: file.read_buffer(10_000), b""))
            assert b"".join(held) == parquet.getvalue()
            assert file.read_at(0, 4) == b"PAR1"
            del held
        with blocking.open("t") as file:
            assert pq.read_table(file, pre_buffer=False).equals(table)


def test_it_says_what_a_file_says(file: SyncFile) -> None:
    assert (file.readable(), file.seekable(), file.writable(), file.isatty()) == (True, True, False, False)
    assert (file.name, file.mode, file.closed, file.size) == ("lines", "rb", False, len(LINES))
    assert file.etag is not None
    calls: list[Callable[[], object]] = [
        *(file.fileno, file.truncate, lambda: file.write(b""), lambda: file.writelines([b""])),
    ]
    for refused in calls:
        with pytest.raises(io.UnsupportedOperation):
            refused()
    with pytest.raises(TypeError, match="pickle the Operator"):
        pickle.dumps(file)


def test_a_closed_file_refuses_everything(file: SyncFile) -> None:
    file.read(1)
    file.close()
    file.close()
    assert file.closed
    calls: list[Callable[[], Any]] = [
        *(file.read, file.readline, file.readlines, file.tell, file.readable, file.seekable, file.__enter__),
        *(lambda: file.seek(0), lambda: file.read_at(0, 1), lambda: file.readinto(bytearray(1)), lambda: next(file)),
        *(lambda: file.view_at(0, 0), lambda: file.read_ranges([]), lambda: file.readinto(b"")),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"closed|writable"):
            call()
    assert file.statistics["stream_read_bytes"] > 0


def test_closing_ends_the_reads_of_others(operator: Operator) -> None:
    """A thread that waits for bytes gets Closed instead of waiting on."""
    held = HeldReads()
    with BlockingOperator(operator.layer(held)) as blocking:
        blocking.write("slow", b"x" * 10)
        file = blocking.open("slow")
        outcomes: list[object] = []

        def read() -> None:
            try:
                outcomes.append(file.read())
            except Closed as error:
                outcomes.append(type(error))

        reading = threading.Thread(target=read)
        reading.start()
        assert held.begun.wait(10)
        file.close()
        reading.join(10)
        assert outcomes == [Closed]


@checks("reliability:C15")
def test_an_unclosed_file_warns_and_lets_go(blocking: BlockingOperator) -> None:
    blocking.write("k", b"bytes")

    def leave_it_open() -> None:
        file = blocking.open("k")
        assert file.read() == b"bytes"

    with pytest.warns(ResourceWarning, match=r"unclosed file .*'k'"):
        leave_it_open()
    blocking.exists("k")  # a round trip: what was left to the loop thread is done
    statistics = blocking.statistics
    assert (statistics["stream_read_opened"], statistics["stream_read_closed"]) == (1, 1)


def test_opening_and_closing_leaves_nothing_behind(blocking: BlockingOperator, operator: Operator) -> None:
    """Neither a task on the loop, nor a thread, nor an open reader."""
    blocking.write("k", LINES)

    async def left() -> tuple[int, int]:
        return len(asyncio.all_tasks()), len(operator.runtime().shared("readers", set))

    def use() -> None:
        with blocking.open("k") as file:
            file.read_at(5000, 9000)
            next(file)

    use()  # which starts what stays with the operator
    before = run(left()), threading.active_count()
    for _ in range(20):
        use()
    assert (run(left()), threading.active_count()) == before


def test_a_file_that_was_never_opened_does_not_warn(operator: Operator) -> None:
    with pytest.raises(ConfigInvalid):
        SyncFile(operator, "k", {"policy": "no such policy"})
    with pytest.raises(IsADirectory):
        SyncFile(operator, "")
    gc.collect()


def test_progress_is_reported_on_the_callers_thread(blocking: BlockingOperator) -> None:
    reported: list[tuple[int, threading.Thread]] = []
    blocking.write("lines", LINES)
    with blocking.open("lines", on_progress=lambda n: reported.append((n, threading.current_thread()))) as file:
        while file.read(10_000):
            pass
        file.read_at(0, 5)
    assert sum(count for count, _ in reported) == len(LINES) + 5
    assert {thread for _, thread in reported} == {threading.current_thread()}


def test_eight_threads_at_once(file: SyncFile) -> None:
    """Positional reads are isolated; reads through the cursor take turns and deliver every byte once."""
    failures: list[object] = []
    pieces: list[bytes] = []

    def positional(seed: int) -> None:
        noise = random.Random(seed)
        for _ in range(300):
            offset, size = noise.randrange(len(LINES)), noise.randrange(6000)
            if file.read_at(offset, size) != LINES[offset : offset + size]:
                failures.append((offset, size))

    def sequential() -> None:
        while piece := file.read(777):
            pieces.append(piece)

    threads = [threading.Thread(target=positional, args=(seed,)) for seed in range(6)]
    threads += [threading.Thread(target=sequential) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    wanted = [LINES[start : start + 777] for start in range(0, len(LINES), 777)]
    assert sorted(pieces) == sorted(wanted)


def test_a_failing_progress_callback_fails_no_read(
    blocking: BlockingOperator, caplog: pytest.LogCaptureFixture
) -> None:
    blocking.write("k", b"bytes")
    with blocking.open("k", on_progress=lambda n: 1 // 0) as file:
        assert file.read() == b"bytes"
    assert "on_progress failed" in caplog.text
