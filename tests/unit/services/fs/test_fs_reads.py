"""Reading files: exact bytes of one version, or an error that says what is wrong."""

import errno
import os
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aioprefetch import errors
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.local_files.errors import from_os_error
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs import Fs
from aioprefetch.services.fs.accessor import FsAccessor
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Metadata, ReadRequest, StatRequest
from tests.profile import each_of

ODD_KEYS = [
    "a b",
    "a+b",
    "50%",
    "a%20b",
    "a#b?c",
    "back\\slash",
    "dir with space/ü/日本語/🎉",
    "\" !@#$%^&()_+-=;',.txt",
    "...",
    ".hidden",
    "new\nline",
    "x" * 255,
    "/".join(["y" * 204] * 4 + ["z" * 204]),  # 1,024 bytes, as long as any store takes a key
    "/".join(["k" * 127] * 8),
]


async def read(accessor: Accessor, path: str, **fields: object) -> bytes:
    """Bytes read into a sink of its own."""
    sink = CollectSink()
    reply = await accessor.read(ReadRequest(path=path, **fields), sink)  # type: ignore[arg-type]
    assert reply.received == sink.received == reply.head.size
    return sink.to_bytes()


async def test_a_range_beyond_the_end_tells_the_size(accessor: Accessor, root: Path) -> None:
    (root / "k").write_bytes(b"0123456789")
    with pytest.raises(errors.RangeNotSatisfied) as caught:
        await read(accessor, "k", offset=10, size=1)
    assert (caught.value.total, caught.value.operation, caught.value.path) == (10, "read", "k")


async def test_large_files_are_read_in_pieces(root: Path, runtime: Runtime) -> None:
    """The bytes of a file longer than a piece are exact."""
    accessor = FsAccessor(Fs(str(root)), runtime, piece_bytes=1000)
    data = os.urandom(4567)
    (root / "k").write_bytes(data)
    assert await read(accessor, "k") == data
    assert await read(accessor, "k", offset=999, size=2002) == data[999:3001]


async def test_slashes_collapse(accessor: Accessor, root: Path) -> None:
    """``/a//b`` is ``a/b``: an absolute path stays under the root."""
    (root / "a").mkdir()
    (root / "a" / "b").write_bytes(b"x")
    for key in ("/a/b", "a//b", "//a///b"):
        assert await read(accessor, key) == b"x"


@checks("reliability:I12")
async def test_an_absolute_path_is_below_the_root(accessor: Accessor) -> None:
    with pytest.raises(errors.NotFound):
        await read(accessor, "/etc/passwd")


@checks("reliability:I10", "reliability:I12")
@pytest.mark.parametrize("key", ["..", "../outside/secret", "a/../b", "./a", "a/.", "a\0b", "x" * 256, "lone\ud800"])
async def test_keys_that_no_file_can_have_are_refused(accessor: Accessor, key: str) -> None:
    with pytest.raises(errors.InvalidPath) as caught:
        await read(accessor, key)
    assert (caught.value.operation, caught.value.path) == ("read", key)
    assert pickle.loads(pickle.dumps(caught.value)).path == key
    with pytest.raises(errors.InvalidPath) as caught:
        await accessor.stat(StatRequest(path=key))
    assert (caught.value.operation, caught.value.path) == ("stat", key)


async def test_metadata(accessor: Accessor, root: Path) -> None:
    (root / "k").write_bytes(b"12345")
    os.utime(root / "k", ns=(0, 1_700_000_000_123_456_789))
    found = await accessor.stat(StatRequest(path="k"))
    inode = (root / "k").stat().st_ino
    assert found == Metadata(
        path="k",
        size=5,
        etag=f"{inode:x}-5-{1_700_000_000_123_456_789:x}",
        last_modified=datetime.fromtimestamp(1_700_000_000_123_456_789 / 1e9, UTC),
    )


async def test_a_missing_root_is_not_found(tmp_path: Path, runtime: Runtime) -> None:
    accessor = Fs(str(tmp_path / "nowhere")).build(runtime)
    with pytest.raises(errors.NotFound):
        await read(accessor, "k")


def replace(path: Path) -> None:
    (path.parent / "new").write_bytes(b"n" * 3000)
    os.replace(path.parent / "new", path)


def truncate(path: Path) -> None:
    os.truncate(path, 1500)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"n" * 3000)
    os.utime(path, ns=(1, 1))


@checks("reliability:I15")
@pytest.mark.parametrize("change", [replace, truncate, grow, overwrite, os.unlink])
async def test_a_change_between_head_and_last_byte_is_detected(
    root: Path, runtime: Runtime, change: Callable[[Path], None]
) -> None:
    """The bytes before the change were of one version; after it none come."""
    (root / "k").write_bytes(b"o" * 3000)

    class ChangingSink(CollectSink):
        def _advanced(self) -> None:
            if self.received == 1000:
                change(root / "k")

    sink = ChangingSink()
    with pytest.raises(errors.ObjectChanged) as caught:
        await FsAccessor(Fs(str(root)), runtime, piece_bytes=1000).read(ReadRequest(path="k"), sink)
    assert sink.to_bytes() == b"o" * 1000
    assert sink.head is not None
    assert (caught.value.received, caught.value.head) == (1000, sink.head)
    assert caught.value.expected_etag == sink.head.etag


@checks("reliability:I15")
async def test_a_replaced_file_does_not_match_its_old_etag(accessor: Accessor, root: Path) -> None:
    (root / "k").write_bytes(b"o" * 3000)
    etag = (await accessor.stat(StatRequest(path="k"))).etag
    replace(root / "k")
    with pytest.raises(errors.ConditionNotMatch):
        await read(accessor, "k", if_match=etag)


@each_of(
    ("code", "kind", "status"),
    [
        ("ENOENT", errors.NotFound, "permanent"),
        ("EACCES", errors.PermissionDenied, "permanent"),
        ("EPERM", errors.PermissionDenied, "permanent"),
        ("EROFS", errors.PermissionDenied, "permanent"),
        ("EISDIR", errors.IsADirectory, "permanent"),
        ("ENOTDIR", errors.NotADirectory, "permanent"),
        ("EEXIST", errors.AlreadyExists, "permanent"),
        ("ELOOP", errors.InvalidPath, "permanent"),
        ("ENAMETOOLONG", errors.InvalidPath, "permanent"),
        ("ENOSPC", errors.Unexpected, "permanent"),
        ("EDQUOT", errors.Unexpected, "permanent"),
        ("EIO", errors.Unexpected, "permanent"),
        ("EMFILE", errors.Unavailable, "temporary"),
        ("ENFILE", errors.Unavailable, "temporary"),
        ("ENOTTY", errors.Unexpected, "permanent"),
    ],
)
def test_the_table_of_errors(code: str, kind: type[errors.Error], status: str) -> None:
    error = from_os_error(OSError(getattr(errno, code), "x"), operation="write", path="p")
    assert (type(error), error.status, error.operation, error.path) == (kind, status, "write", "p")
    assert code in str(error)
    assert len(error.message) > 10


def test_a_file_as_a_parent_is_not_found_for_a_reader() -> None:
    error = from_os_error(NotADirectoryError(20, "x"), operation="read", path="p")
    assert type(error) is errors.NotFound


@checks("reliability:C35")
async def test_no_descriptor_left_is_temporary(accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running out of descriptors is an error of ours, not a raw OSError."""
    (root / "k").write_bytes(b"x")

    def full(*arguments: object, **more: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(errors.Unavailable) as caught:
        await read(accessor, "k")
    assert caught.value.is_temporary


@each_of("root", ["relative", "./x", "~", "", "a\0b", "/a/../b", b"/bytes", None, 3])
def test_an_invalid_root(root: object) -> None:
    with pytest.raises(errors.ConfigInvalid, match="root must"):
        Fs(root)  # type: ignore[arg-type]


def test_a_relative_root_says_so() -> None:
    with pytest.raises(errors.ConfigInvalid, match=r"absolute path, not 'data'"):
        Fs("data")


def test_the_recipe() -> None:
    """It pickles, compares, and names itself by one URL, however the root was written."""
    recipe = Fs(Path("/data//x/./y/"), fsync=True)
    assert recipe.root == "/data/x/y"
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert recipe.info.url == "file:///data/x/y"
    assert hash(recipe) == hash(Fs("/data/x/y", fsync=True))
    assert recipe.capability.write_content_type is False
    with pytest.raises(errors.ConfigInvalid):
        Fs("/data", fsync="yes")  # type: ignore[arg-type]
