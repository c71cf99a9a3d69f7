"""Files written in parts: whichever request fails, from forks and spawned processes, in a notebook, by the thousand."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aioprefetch import Operator, sync
from aioprefetch.errors import PermissionDenied, Unavailable
from aioprefetch.layers import ErrorContextLayer, RetryLayer
from aioprefetch.sync import BlockingOperator
from aioprefetch.sync.write_file import PIECE_BYTES
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from tests.profile import chosen
from tests.stores.part_store import PartStore

THIRD = PIECE_BYTES // 3
DATA = bytes(range(256)) * (PIECE_BYTES * 5 // 512)  # Two and a half parts, which eight thirds cover.
REQUESTS = 5  # One to begin, three parts, one to complete.
Program = Callable[[str], str]


def store_of(name: str, *plan: Injection) -> tuple[BlockingOperator, PartStore]:
    """A store of parts, with a plan of faults in front of it."""
    parts = PartStore(PIECE_BYTES)
    op = Operator.from_uri(f"memory://{name}").layer(parts, inside=ErrorContextLayer)
    op = op.layer(FaultLayer(plan), inside=ErrorContextLayer).layer(RetryLayer(base_seconds=0))
    return BlockingOperator(op), parts


def write_in_pieces(blocking: BlockingOperator, pieces: int = 8, error: BaseException | None = None) -> None:
    """Write ``DATA`` as "k", a third of a part at a time; or some pieces of it, and fail."""
    with blocking.open("k", "wb") as file:
        for number in range(pieces):
            file.write(DATA[number * THIRD : (number + 1) * THIRD])
        if error is not None:
            raise error


def test_a_request_that_fails_leaves_nothing(random_name: Callable[[], str]) -> None:
    """Whichever it is: no object, no upload, no memory, and the error is the store's."""
    for number in range(REQUESTS):
        blocking, parts = store_of(random_name(), Injection(occurrence=number, error=PermissionDenied))
        with blocking:
            with pytest.raises(PermissionDenied):
                write_in_pieces(blocking)
            assert not blocking.exists("k")
            assert parts.uploads == {}
            assert blocking.statistics["stream_read_active_memory_in_use"] == 0


def test_a_request_that_fails_once_is_repeated_alone(random_name: Callable[[], str]) -> None:
    for number in range(REQUESTS):
        blocking, parts = store_of(random_name(), Injection(occurrence=number, error=Unavailable))
        with blocking:
            write_in_pieces(blocking)
            assert blocking.read("k") == DATA
            assert sorted(parts.sent) == [1, 2, 3]


@pytest.mark.parametrize("kind", [ArithmeticError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_ends_anywhere_leaves_nothing(
    kind: type[BaseException], random_name: Callable[[], str], unraisable: list[str]
) -> None:
    """After any number of pieces. Of a generator that is collected there in its block, no caller hears."""
    for count in range(0, 9, chosen(quick=2, full=1)):
        blocking, parts = store_of(random_name())
        with blocking:
            blocking.write("k", b"before")
            with pytest.raises(kind):
                write_in_pieces(blocking, count, kind())
            assert (blocking.read("k"), parts.uploads) == (b"before", {})
            assert bool(unraisable) == (kind is GeneratorExit)


async def test_a_file_is_written_where_a_loop_runs(tmp_path: Path) -> None:
    """As in a cell of a notebook: text, bytes and a table of the same store, while tasks wait."""
    ticks = asyncio.create_task(asyncio.sleep(0))
    url = f"file://{tmp_path}"
    with sync.open(f"{url}/bytes", "wb") as file:
        file.write(DATA)
    with sync.open(f"{url}/text.gz", "w", compression="infer") as text:
        text.write("Grüße")
    with sync.open(f"{url}/text.gz", "r", compression="infer") as text:
        assert text.read() == "Grüße"
    assert (tmp_path / "bytes").read_bytes() == DATA
    await ticks


def test_forks_and_spawned_processes_write_files_of_their_own(program: Program, tmp_path: Path) -> None:
    """After the parent has used the operator, and while it has a file open."""
    printed = program(f"""
import multiprocessing, os
from aioprefetch import Operator, sync
from aioprefetch.sync import BlockingOperator

url = "file://{tmp_path}"

def write(operator, name):
    with BlockingOperator(operator) as blocking, blocking.open(name, "wb") as file:
        file.write(name.encode() * 400_000)
    with sync.open(f"{{url}}/{{name}}-by-url", "w") as file:
        file.write(name)

operator = Operator.from_uri(url)
blocking = BlockingOperator(operator)
write(operator, "before")
with blocking.open("parent", "wb") as file:
    file.write(b"parent")
    for number in range(3):
        pid = os.fork()
        if not pid:
            write(operator, f"fork{{number}}")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
write(operator, "after")
blocking.close()
print(sorted(os.listdir("{tmp_path}")))
""")
    names = ("after", "before", "fork0", "fork1", "fork2")
    assert eval(printed) == sorted(["parent", *names, *(f"{name}-by-url" for name in names)])
    for name in names:
        assert (tmp_path / name).read_bytes() == name.encode() * 400_000
        assert (tmp_path / f"{name}-by-url").read_text() == name


SPAWNED = """
import multiprocessing
from tests.unit.sync.test_written_in_parts import spawned_write
from aioprefetch import Operator

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    operator = Operator.from_uri("file://{folder}")
    process = context.Process(target=spawned_write, args=(operator,))
    process.start()
    process.join()
    print(process.exitcode)
"""


def spawned_write(operator: Operator) -> None:
    """In a process that has only the pickle of an operator."""
    with BlockingOperator(operator) as blocking, blocking.open("spawned", "wb") as file:
        file.write(DATA)


def test_a_spawned_process_writes_by_the_pickle_of_an_operator(program: Program, tmp_path: Path) -> None:
    assert program(SPAWNED.format(folder=tmp_path)) == "0\n"
    assert (tmp_path / "spawned").read_bytes() == DATA


def held() -> tuple[int, int]:
    """The threads and descriptors of this process."""
    return threading.active_count(), len(os.listdir("/dev/fd"))


def test_thousands_of_files_leave_nothing_behind(tmp_path: Path) -> None:
    """Neither threads nor descriptors nor hidden files, by URL and by an operator."""
    opens = chosen(quick=100, full=1_000, search=10_000)
    for _ in range(100):  # As many threads and kept operators as there will be.
        with sync.open(f"file://{tmp_path}/k", "wb") as file:
            file.write(b"first")
    before = held()
    for number in range(opens):
        with sync.open(f"file://{tmp_path}/k", "wb") as file:
            file.write(b"%d" % number)
    with BlockingOperator(Operator.from_uri(f"file://{tmp_path}")) as blocking:
        for number in range(opens):
            with blocking.open("k", "w") as text:
                text.write(f"{number}")
    threads, descriptors = held()
    assert threads <= before[0] + 8  # Those of the operator's runtime, which end when they are idle.
    assert descriptors <= before[1] + 8
    assert os.listdir(tmp_path) == ["k"]
    assert (tmp_path / "k").read_text() == str(opens - 1)
