"""Conditions of copies and deletions, and the identity of files in a local store."""

import os
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore, MemoryStore, S3Store

from aioprefetch.errors import AlreadyExists, ConditionNotMatch, Error, IsSameFile, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.services.fs import Fs
from aioprefetch.services.obspec import ObspecStore
from aioprefetch.values import Capability, CopyRequest, DeleteRequest
from tests.unit.services.obspec.plain import GetOnly


class Copying(GetOnly):
    """Notes the copies that are asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[str, str, dict[str, Any]]] = []

    async def copy_async(self, from_: str, to: str, **options: Any) -> None:
        """As obspec has it."""
        self.copies.append((from_, to, options))


def capability_of(store: Any) -> Capability:
    return ObspecStore(store).capability


async def test_the_condition_goes_with_one_copy() -> None:
    store = Copying()
    async with Operator(ObspecStore(store, prefix="p")) as op:
        await op.accessor().copy(CopyRequest(path="a", target="b"))
        await op.accessor().copy(CopyRequest(path="a", target="b", if_not_exists=True))
    assert store.copies == [("p/a", "p/b", {}), ("p/a", "p/b", {"overwrite": False})]
    assert store.options == []  # None of its bytes came here.


@pytest.mark.parametrize("kind", ["memory", "local"])
async def test_an_object_at_the_target_stays(kind: str, tmp_path: Path) -> None:
    """Without another attempt, which could do nothing else."""
    async with Operator(ObspecStore(MemoryStore() if kind == "memory" else LocalStore(tmp_path))) as op:
        await op.write("a", b"new")
        await op.write("b", b"old")
        with pytest.raises(AlreadyExists) as caught:
            await op.accessor().copy(CopyRequest(path="a", target="b", if_not_exists=True))
        assert (caught.value.operation, caught.value.status) == ("copy", "permanent")
        assert "attempts" not in caught.value.context
        assert await op.read("b") == b"old"
        await op.accessor().copy(CopyRequest(path="a", target="c", if_not_exists=True))
        assert await op.read("c") == b"new"


@pytest.mark.parametrize("kind", ["memory", "local"])
async def test_no_condition_is_ignored(kind: str, tmp_path: Path) -> None:
    """That of a copy is kept by reading and writing; that of a deletion is refused, and nothing is deleted."""
    async with Operator(ObspecStore(MemoryStore() if kind == "memory" else LocalStore(tmp_path))) as op:
        first = await op.write("a", b"first")
        await op.write("a", b"the second")
        accessor = op.accessor()
        assert (accessor.capability.copy_if_match, accessor.capability.delete_if_match) == (False, False)
        with pytest.raises(ConditionNotMatch):
            await accessor.copy(CopyRequest(path="a", target="b", if_match=first.etag))
        with pytest.raises(Unsupported):
            await accessor.copy(CopyRequest(path="a", target="b", version="1"))
        with pytest.raises(Unsupported):
            await accessor.delete(DeleteRequest(path="a", paths=("a",), if_match={"a": first.etag or ""}))
        assert not await op.exists("b")
        assert await op.read("a") == b"the second"
        etag = (await op.stat("a")).etag
        await accessor.copy(CopyRequest(path="a", target="b", if_match=etag, if_not_exists=True))
        assert await op.read("b") == b"the second"


def test_who_has_the_condition() -> None:
    """S3Store has it if it is configured."""
    plain: dict[str, Any] = {"region": "us-east-1", "access_key_id": "a", "secret_access_key": "b"}
    assert not capability_of(S3Store("bucket", **plain)).copy_if_not_exists
    assert capability_of(S3Store("bucket", copy_if_not_exists="multipart", **plain)).copy_if_not_exists
    assert capability_of(MemoryStore()).copy_if_not_exists
    assert not capability_of(GetOnly()).copy_if_not_exists


async def test_a_copy_in_a_local_store_is_a_file_of_its_own(tmp_path: Path) -> None:
    """LocalStore would make a hard link: what is appended to one file would be in the other."""
    async with Operator(ObspecStore(LocalStore(tmp_path))) as op:
        await op.write("a", b"DATA")
        for _ in range(2):  # The second time it is there, and still no other name of "a".
            await op.copy("a", "b")
            with (tmp_path / "a").open("ab") as file:
                file.write(b"+")
        assert await op.read("b") == b"DATA+"
        assert await op.read("a") == b"DATA++"
        with pytest.raises(IsSameFile):
            await op.copy("a", "a")


@pytest.mark.parametrize("prefix", ["", "d"])
async def test_files_of_a_local_store_are_those_of_the_file_system(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "a b#%20ü").write_bytes(b"DATA")
    os.link(tmp_path / "d" / "e" / "a b#%20ü", tmp_path / "d" / "hard")
    (tmp_path / "d" / "link").symlink_to("hard")
    service = ObspecStore(LocalStore(tmp_path), prefix=prefix)
    async with Operator(service) as op, Operator(Fs(str(tmp_path / prefix), follow_symlinks=True)) as files:
        below = "" if prefix else "d/"
        for name in ("e/a b#%20ü", "hard", "link", "e", "e/", "new", "new/deep"):
            identity = await op.accessor().identity(below + name)
            expected = await files.accessor().identity(below + name)
            assert identity == expected, name
            assert identity.within == expected.within
            assert identity.path == expected.path
        assert (await op.accessor().identity("")).kind == "directory"


async def test_a_local_store_without_a_prefix_begins_at_the_root(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"DATA")
    async with Operator(ObspecStore(LocalStore())) as op:
        identity = await op.accessor().identity(f"{tmp_path}/a"[1:])
        assert (identity.kind, identity.name) == (
            "file",
            ((tmp_path / "a").stat().st_dev, (tmp_path / "a").stat().st_ino),
        )


async def test_elsewhere_keys_are_identities() -> None:
    async with Operator(ObspecStore(MemoryStore(), name="m")) as op:
        identity = await op.accessor().identity("d/a")
        assert (identity.name, identity.kind, identity.within) == ("d/a", "unknown", ("", "d/"))


async def test_the_file_system_s_refusal_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    async with Operator(ObspecStore(LocalStore(tmp_path))) as op:
        with pytest.raises(Error) as caught:
            await op.accessor().identity("circle/a")
        assert (caught.value.kind, caught.value.path) == ("InvalidPath", "circle/a")
