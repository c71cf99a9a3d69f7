"""Small objects into files: one job of a thread for each, and what was longer than its listing said arrives too."""

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.local_files.threads import FileThreads
from aioprefetch.local_files.writer import write_file
from aioprefetch.values import ListPage, ListRequest
from tests.stores.verb_layer import VerbLayer

MIB = 1 << 20
OBJECTS = {f"d{number % 3}/f{number}": os.urandom(100 + number) for number in range(40)}


class Stale(VerbLayer):
    """A listing that is behind: each object had ten bytes, and the store tells no ETags there."""

    async def list_page(self, inner: ap.Accessor, request: ListRequest) -> ListPage:
        page = await inner.list_page(request)
        return replace(page, entries=tuple(replace(entry, size=10, etag=None) for entry in page.entries))


@pytest.fixture
async def source() -> Any:
    async with ap.Operator(ap.services.Memory()) as op:
        for path, data in OBJECTS.items():
            await op.write(f"x/{path}", data)
        yield op


async def test_each_takes_one_job(source: ap.Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, begin = list[bool](), FileThreads.call

    def counted(threads: FileThreads, *arguments: Any, **options: Any) -> Any:
        jobs.append(write_file in arguments)
        return begin(threads, *arguments, **options)

    monkeypatch.setattr(FileThreads, "call", counted)
    await source.download("x/", tmp_path)
    assert {path: (tmp_path / path).read_bytes() for path in OBJECTS} == OBJECTS
    assert jobs.count(True) == len(OBJECTS)
    assert len(jobs) < len(OBJECTS) + 10  # Those that look at the directory before.


@pytest.mark.parametrize("size", [0, 10, MIB, MIB + 1, 20 * MIB])
async def test_an_object_may_have_another_size_than_its_listing_said(
    source: ap.Operator, tmp_path: Path, size: int
) -> None:
    data = os.urandom(size)
    await source.write("y/k", data)
    await ap.copy((source.layer(Stale()), "y/"), tmp_path)
    assert (tmp_path / "k").read_bytes() == data
    assert os.listdir(tmp_path) == ["k"]


async def test_no_byte_is_readable_for_others_where_the_replaced_file_was_not(
    source: ap.Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k").write_bytes(b"old")
    (tmp_path / "k").chmod(0o600)
    modes, write = list[int](), os.write

    def watched(descriptor: int, data: Any) -> int:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            modes.append(stat.S_IMODE(status.st_mode))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", watched)
    await source.write("z/k", b"secret")
    await source.download("z/", tmp_path)
    assert (tmp_path / "k").read_bytes() == b"secret"
    assert modes == [0o600]
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600


async def test_what_cannot_be_written_leaves_the_old_file(
    source: ap.Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full: the old bytes stay, and nothing is hidden beside them."""
    (tmp_path / "k").write_bytes(b"old")
    await source.write("z/k", b"new")

    write = os.write

    def full(descriptor: int, data: Any) -> int:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ap.errors.Error) as caught:
        await source.download("z/", tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == {"k": b"old"}
    assert isinstance(caught.value, OSError)
    assert caught.value.path == "z/k"
