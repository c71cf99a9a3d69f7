"""Nothing outside the root: links on any part of a path, special files, and links that are swapped in meanwhile."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from aioprefetch import errors
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs import Fs
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import (
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListRequest,
    ReadRequest,
    StatRequest,
    WriteRequest,
)

SWAPPED_READS = 300


async def read(accessor: Accessor, path: str) -> bytes:
    sink = CollectSink()
    await accessor.read(ReadRequest(path=path), sink)
    return sink.to_bytes()


@pytest.fixture
def linked(root: Path) -> Path:
    """A root with links to a file and a directory outside, and inside."""
    (root / "inside").mkdir()
    (root / "inside" / "k").write_bytes(b"inside")
    (root / "file").symlink_to(root.parent / "outside" / "secret")
    (root / "dir").symlink_to(root.parent / "outside")
    (root / "near").symlink_to("inside/k")
    (root / "neardir").symlink_to("inside")
    (root / "dangling").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    return root


LINKED = ["file", "dir/secret", "near", "neardir/k", "dangling", "loop", "loop/x"]


@checks("reliability:I13", "reliability:K16")
@pytest.mark.parametrize("path", LINKED)
async def test_links_are_refused_on_every_part_of_a_path(linked: Path, accessor: Accessor, path: str) -> None:
    """For every operation, whether the link leads out or not."""
    before = sorted(os.listdir(linked)), sorted(os.listdir(linked.parent / "outside"))
    for operation in (
        lambda: read(accessor, path),
        lambda: accessor.stat(StatRequest(path=path)),
        lambda: accessor.write(WriteRequest(path=path), b"x"),
        lambda: accessor.copy(CopyRequest(path="inside/k", target=path)),
        lambda: accessor.copy(CopyRequest(path=path, target="copied")),
        lambda: accessor.delete(DeleteRequest(path=path, paths=(path,))),
        lambda: accessor.create_dir(CreateDirRequest(path=f"{path}/")),
    ):
        with pytest.raises(errors.InvalidPath, match="link"):
            await operation()
    assert (linked.parent / "outside" / "secret").read_bytes() == b"secret"
    assert (sorted(os.listdir(linked)), sorted(os.listdir(linked.parent / "outside"))) == before


@checks("reliability:K17")
async def test_listing_neither_shows_links_nor_goes_into_them(linked: Path, accessor: Accessor) -> None:
    for recursive, expected in ((True, ["inside/k"]), (False, ["inside/"])):
        page = await accessor.list_page(ListRequest(path="", recursive=recursive))
        assert [entry.path for entry in page.entries] == expected
    with pytest.raises(errors.InvalidPath, match="link"):
        await accessor.list_page(ListRequest(path="dir/"))


@checks("reliability:I13")
async def test_links_may_be_followed_within_the_root(linked: Path, runtime: Runtime) -> None:
    """On request, and then only to what lies under the root after all links are resolved."""
    accessor = Fs(str(linked), follow_symlinks=True).build(runtime)
    assert await read(accessor, "near") == await read(accessor, "neardir/k") == b"inside"
    assert (await accessor.stat(StatRequest(path="neardir/"))).is_directory
    page = await accessor.list_page(ListRequest(path="neardir/"))
    assert [entry.path for entry in page.entries] == ["neardir/k"]
    for path in ("file", "dir/secret", "loop"):
        with pytest.raises(errors.InvalidPath):
            await read(accessor, path)
    with pytest.raises(errors.InvalidPath):
        await accessor.write(WriteRequest(path="dir/new"), b"x")
    with pytest.raises(errors.NotFound):
        await read(accessor, "dangling")
    await accessor.write(WriteRequest(path="near"), b"written")
    assert (linked / "inside" / "k").read_bytes() == b"written"
    await accessor.delete(DeleteRequest(path="near", paths=("near",)))
    assert not (linked / "near").is_symlink()
    assert (linked / "inside" / "k").exists()
    assert sorted(os.listdir(linked.parent / "outside")) == ["secret"]


async def test_links_in_the_root_itself_are_the_users_own(root: Path, tmp_path: Path, runtime: Runtime) -> None:
    (root / "k").write_bytes(b"x")
    (tmp_path / "alias").symlink_to(root)
    for follow_symlinks in (False, True):
        accessor = Fs(str(tmp_path / "alias"), follow_symlinks=follow_symlinks).build(runtime)
        assert await read(accessor, "k") == b"x"


async def test_a_sibling_with_the_roots_name_as_prefix_is_outside(root: Path, runtime: Runtime) -> None:
    (root.parent / "root-other").mkdir()
    (root.parent / "root-other" / "k").write_bytes(b"x")
    (root / "link").symlink_to(root.parent / "root-other")
    with pytest.raises(errors.InvalidPath):
        await read(Fs(str(root), follow_symlinks=True).build(runtime), "link/k")


@checks("reliability:I14")
@pytest.mark.parametrize("follow_symlinks", [False, True])
async def test_special_files_are_refused_without_waiting(root: Path, runtime: Runtime, follow_symlinks: bool) -> None:
    """A FIFO without a writer would block an open for ever, a socket cannot be opened at all."""
    accessor = Fs(str(root), follow_symlinks=follow_symlinks).build(runtime)
    os.mkfifo(root / "fifo")
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(root / "socket"))
        for path in ("fifo", "socket"):
            with pytest.raises(errors.InvalidPath, match="not a regular file"):
                await read(accessor, path)
            with pytest.raises(errors.InvalidPath, match="not a regular file"):
                await accessor.stat(StatRequest(path=path))
            with pytest.raises(errors.InvalidPath, match="not a regular file"):
                await accessor.write(WriteRequest(path=path), b"x")
            with pytest.raises(errors.InvalidPath, match="not a regular file"):
                await accessor.delete(DeleteRequest(path=path, paths=(path,)))
        assert (await accessor.list_page(ListRequest(path="", recursive=True))).entries == ()


@checks("reliability:I14")
async def test_a_fifo_that_takes_the_files_place_does_not_hang(
    root: Path, accessor: Accessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap comes between the look at the file and its opening, where only O_NONBLOCK helps."""
    (root / "k").write_bytes(b"x")
    original = os.open

    def swapping(path: str, flags: int, *more: object, **named: object) -> int:
        if path == "k":
            os.unlink(root / "k")
            os.mkfifo(root / "k")
        return original(path, flags, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", swapping)
    with pytest.raises(errors.InvalidPath, match="not a regular file"):
        await read(accessor, "k")


SWAPPER = """
import ctypes, sys
exchange = 2
renameat2 = ctypes.CDLL(None).renameat2
one, other = (name.encode() for name in sys.argv[1:])
print(renameat2(-100, one, -100, other, exchange), flush=True)
while True:
    renameat2(-100, one, -100, other, exchange)
"""


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """A process that keeps exchanging two names, atomically; a thread would have to wait for our own."""
    command = [sys.executable, "-c", SWAPPER, str(one), str(other)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "0\n"
            yield
        finally:
            process.kill()


@pytest.fixture
def decoy(root: Path) -> Path:
    """A link to the outside that takes turns with the real directory ``d``."""
    (root / "d").mkdir()
    (root / "d" / "secret").write_bytes(b"inside")
    (root / "decoy").symlink_to(root.parent / "outside")
    return root / "decoy"


@checks("reliability:I16", "reliability:K16")
async def test_links_swapped_in_during_reads_never_lead_out(root: Path, decoy: Path, accessor: Accessor) -> None:
    """Whatever the moment of the swap, a read has the bytes from inside or fails."""
    seen: dict[object, int] = {}
    with swapping(root / "d", decoy):
        for _ in range(SWAPPED_READS):
            outcome: object
            try:
                outcome = await read(accessor, "d/secret")
            except errors.InvalidPath as error:
                outcome = type(error)
            seen[outcome] = seen.get(outcome, 0) + 1
    assert seen.keys() <= {b"inside", errors.InvalidPath}


@checks("reliability:I16")
async def test_a_file_swapped_for_a_link_during_reads_never_leads_out(root: Path, accessor: Accessor) -> None:
    (root / "k").write_bytes(b"inside")
    (root / "decoy").symlink_to(root.parent / "outside" / "secret")
    outcomes: set[object] = set()
    with swapping(root / "k", root / "decoy"):
        for _ in range(SWAPPED_READS):
            try:
                outcomes.add(await read(accessor, "k"))
            except errors.InvalidPath:
                outcomes.add(errors.InvalidPath)
    assert outcomes <= {b"inside", errors.InvalidPath}


@checks("reliability:W28")
async def test_links_swapped_in_during_writes_never_lead_out(root: Path, decoy: Path, accessor: Accessor) -> None:
    with swapping(root / "d", decoy):
        for number in range(SWAPPED_READS):
            with suppress(errors.InvalidPath):
                await accessor.write(WriteRequest(path=f"d/{number}"), b"x")
    assert os.listdir(root.parent / "outside") == ["secret"]


@checks("reliability:I16")
async def test_followed_links_swapped_during_reads_never_lead_out(root: Path, decoy: Path, runtime: Runtime) -> None:
    """The path that the links lead to is walked as strictly, so the check cannot be outrun."""
    accessor = Fs(str(root), follow_symlinks=True).build(runtime)
    with swapping(root / "d", decoy):
        for _ in range(SWAPPED_READS):
            with suppress(errors.InvalidPath, errors.NotFound):
                assert await read(accessor, "d/secret") == b"inside"
