"""Stores whose ETags tell no versions apart: all zeros, or one for objects of several sizes."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.accessor.response_check import ETags
from aioprefetch.errors import ConditionNotMatch, ObjectChanged, Unavailable
from aioprefetch.layers import LruCacheLayer
from aioprefetch.testing import Fault
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CopyRequest, Entry
from tests.reliability.scripted import always, once, serving
from tests.stores.key_server import Asked, Bent, KeyServer, Said

MIB = 1 << 20
DATA = bytes(range(256)) * (8 * MIB // 256)
NEW = DATA[::-1]
# In small pieces, so that a read takes many requests, and nothing is repeated.
PIECES = {"block_bytes": MIB, "attempts_max": 1, "concurrency": 4}
SHARED = "d41d8cd98f00b204e9800998ecf8427e"
KINDS = {
    "zeros": lambda data: "0" * 32,
    "zeros of parts": lambda data: "0" * 32 + "-17",
    "shared": lambda data: SHARED,
    "shared, and no digest": lambda data: "abc",
}


def storing(kind: str, objects: dict[str, bytes]) -> KeyServer:
    """A store with such ETags, and two objects of other sizes in it."""
    server = KeyServer({**objects, "one": b"1", "two": b"22"})
    server.etag = KINDS[kind]
    return server


async def seen(op: Operator) -> None:
    """Have looked at two objects."""
    await op.stat("one")
    await op.stat("two")


@checks("reliability:W45")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_copy_leaves_no_object_out(kind: str) -> None:
    """Between two stores, as a sync; and a second time nothing tells that they are the same."""
    first = storing(kind, {"p/a": b"new\n", "p/b": b"other"})
    second = storing(kind, {"p/a": b"old\n", "p/b": b"OTHER"})
    async with first, second, first.operator() as source, second.operator() as target:
        report = await ap.copy((source, "p/"), (target, "p/"))
        assert (report.copied, report.skipped) == (2, 0)
        assert second.objects["p/a"] == b"new\n"
        assert second.objects["p/b"] == b"other"


@pytest.mark.parametrize("sizes", [(4, 5), (5, 4)])
async def test_two_sizes_in_one_listing_are_enough(sizes: tuple[int, int]) -> None:
    """In whichever order they stand."""
    first = KeyServer({f"p/{name}": b"n" * size for name, size in zip("ab", sizes, strict=True)})
    second = KeyServer({f"p/{name}": b"o" * size for name, size in zip("ab", sizes, strict=True)})
    first.etag = second.etag = KINDS["shared"]
    async with first, second, first.operator() as source, second.operator() as target:
        assert (await ap.copy((source, "p/"), (target, "p/"))).copied == 2


async def test_true_digests_leave_out_what_is_the_same() -> None:
    first, second = KeyServer({"p/a": b"one", "p/b": b"new"}), KeyServer({"p/a": b"one", "p/b": b"old"})
    async with first, second, first.operator() as source, second.operator() as target:
        report = await ap.copy((source, "p/"), (target, "p/"))
        assert (report.copied, report.skipped) == (1, 1)


async def by_read(op: Operator, path: Path) -> bytes:
    return await op.read("k")


async def by_view(op: Operator, path: Path) -> bytes:
    views = await op.view_ranges(
        "k", [(start, start + MIB) for start in range(0, len(DATA), MIB)], request_bytes_max=MIB
    )
    return b"".join(views)


async def by_reader(op: Operator, path: Path) -> bytes:
    async with op.reader("k", policy="random") as reader:
        return b"".join([await reader.read_at(start, MIB) for start in range(0, len(DATA), MIB)])


async def by_chunks(op: Operator, path: Path) -> bytes:
    async with op.reader("k", policy="sequential") as reader:
        return b"".join([bytes(await reader.read(MIB)) for _ in range(len(DATA) // MIB)])


async def by_download(op: Operator, path: Path) -> bytes:
    await op.download("k", path / "file")
    return (path / "file").read_bytes()


async def by_copy(op: Operator, path: Path) -> bytes:
    async with Operator(ap.services.Memory()) as target:
        await ap.copy((op, "k"), (target, "k"))
        return await target.read("k")


READS: list[Callable[[Operator, Path], Awaitable[bytes]]] = [
    by_read,
    by_view,
    by_reader,
    by_chunks,
    by_download,
    by_copy,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", READS)
async def test_a_long_read_mixes_no_versions(
    read: Callable[[Operator, Path], Awaitable[bytes]], kind: str, tmp_path: Path
) -> None:
    """An object of the same size and ETag is another one by its time; one that stays is read as before."""

    def overwrite(asked: Asked, right: Said) -> Said:
        server.put("k", NEW)
        return server.done(asked)

    async with storing(kind, {"k": DATA}) as server:
        async with server.operator(**PIECES) as op:
            await seen(op)
            assert await read(op, tmp_path) == DATA
        async with server.operator(**PIECES) as op:
            await seen(op)
            server.bent = [Bent("get", lambda asked, right: server.done(asked), times=2), Bent("get", overwrite)]
            with pytest.raises(ObjectChanged):
                await read(op, tmp_path)


@pytest.mark.parametrize("modified", [None, "Tue, 01 Jan 2030 00:00:00 GMT"])
async def test_a_read_that_was_cut_goes_on_with_its_version_alone(modified: str | None) -> None:
    zeros = f'"{"0" * 32}-1"'
    cut, rest = Fault(etag=zeros, close_after_bytes=20_000), Fault(etag=zeros)
    if modified is not None:
        rest = Fault(etag=zeros, headers={"Last-Modified": modified})
    async with serving("s3", once(cut), always(rest)) as scripted:
        if modified is None:
            await scripted.read()
        else:
            await scripted.fail(ObjectChanged)
        scripted.server.assert_requests("GET", "GET")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_resumed_download_begins_again_with_another_version(kind: str, tmp_path: Path) -> None:
    """The note names the version by its time."""
    target, old, new = tmp_path / "file", DATA * 3, NEW * 3
    asked: list[int] = []
    async with storing(kind, {"k": old}) as server, server.operator(**PIECES) as op:
        await seen(op)
        for is_newer in (False, True):
            server.asked.clear()
            server.bent = [
                Bent("get", lambda asked, right: server.done(asked), times=12),
                Bent("get", Said(200, None), times=99),
            ]
            with pytest.raises(Unavailable):
                await op.download("k", target)
            server.bent.clear()
            if is_newer:
                server.put("k", new)
            server.asked.clear()
            await op.download("k", target)
            assert target.read_bytes() == (new if is_newer else old)
            asked.append(server.verbs.count("get"))
    assert asked[0] < asked[1] - 5  # What the first run has brought of the same version is not asked for again.


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cache_keeps_no_older_version(kind: str) -> None:
    async with storing(kind, {"k": b"older"}) as server, server.operator() as op:
        await seen(op)
        async with Operator(ap.services.Memory()) as cache:
            cached = op.layer(LruCacheLayer(cache=cache, revalidate_seconds=0))
            assert await cached.read("k") == b"older"
            assert await cached.read("k") == b"older"
            server.put("k", b"newer")
            assert await cached.read("k") == b"newer"


@checks("reliability:W12", "reliability:W45")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_move_does_not_delete_a_newer_object(kind: str) -> None:
    """The second look compares the time."""

    def overwrite(asked: Asked, right: Said) -> Said:
        server.put("k", b"newer")
        return right

    async with storing(kind, {"k": b"older"}) as server, server.operator() as op:
        await seen(op)
        server.bent = [Bent("copy", overwrite, True)]
        with pytest.raises(ObjectChanged):
            await op.move("k", "to")
        assert (server.objects["k"], server.objects["to"]) == (b"newer", b"older")
        await op.move("k", "to")
        assert server.objects.get("k") is None
        assert server.objects["to"] == b"newer"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_etag_of_a_write_pins_a_read(kind: str) -> None:
    """It has no time, and so it is that of the store."""
    async with storing(kind, {}) as server, server.operator() as op:
        await seen(op)
        written = await op.write("k", b"one")
        assert await op.read("k", if_match=written.etag) == b"one"
        found = (await op.stat("k")).etag
        assert found is not None
        assert found == f"{written.etag}@modified:{server.now}"
        assert (await op.stat("k", if_match=written.etag)).etag == found
        assert await op.read("k", if_match=found) == b"one"
        await op.write("k", b"two", if_match=found)  # The store compares what it can.
        with pytest.raises(ConditionNotMatch):
            await op.read("k", if_match=found)
        assert await op.read("k", if_none_match=found) == b"two"
        now = (await op.stat("k")).etag
        with pytest.raises(ConditionNotMatch):
            await op.read("k", if_none_match=now)
        sent = [
            one.headers.get("if-match") or one.headers.get("if-none-match") for one in server.asked if one.verb == "get"
        ]
        assert sent == [None] * len(sent)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_copy_by_the_store_is_of_the_time_that_was_seen(kind: str) -> None:
    """Its ETag would hold for any version."""
    async with storing(kind, {"k": b"one"}) as server, server.operator() as op:
        await seen(op)
        found = (await op.stat("k")).etag
        await op.accessor().copy(CopyRequest(path="k", target="to", if_match=found))
        asked = server.asked[-1].headers
        assert "x-amz-copy-source-if-match" not in asked
        assert asked["x-amz-copy-source-if-unmodified-since"] == "Tue, 14 Nov 2023 22:13:20 GMT"


async def test_a_listing_names_objects_as_a_look_at_them_does() -> None:
    """By whole seconds, though a listing has more of them."""
    for kind in KINDS:
        async with storing(kind, {"k": b"one"}) as server, server.operator() as op:
            listed = {entry.path: entry.etag for entry in await op.list("").collect()}
            assert listed == {path: (await op.stat(path)).etag for path in listed}
            assert all("@modified:" in (etag or "") for etag in listed.values())


async def test_who_has_begun_to_read_before_goes_on() -> None:
    """A second size is seen later. An object that was overwritten meanwhile is another one."""
    for overwritten in (False, True):
        async with storing("shared", {"k": DATA}) as server, server.operator(**PIECES) as op:
            reader = op.reader("k", policy="random")
            assert bytes(await reader.read_at(0, 10)) == DATA[:10]
            assert reader.etag == SHARED
            await seen(op)
            if overwritten:
                server.put("k", NEW)
                with pytest.raises(ObjectChanged):
                    await reader.read_at(4 * MIB, 10)
            else:
                assert bytes(await reader.read_at(4 * MIB, 10)) == DATA[4 * MIB :][:10]
            await reader.aclose()


async def test_an_etag_without_a_time_is_weak() -> None:
    """Nothing proves that two responses are of one version."""

    def untimed(asked: Asked, right: Said) -> Said:
        right.headers.pop("Last-Modified", None)  # type: ignore[attr-defined]
        return right

    async with storing("zeros", {"k": b"one"}) as server, server.operator() as op:
        server.bent = [Bent("head", untimed, True), Bent("get", untimed, True)]
        assert (await op.stat("k")).etag == "W/" + "0" * 32
        assert await op.read("k") == b"one"


def test_what_are_zeros() -> None:
    etags = ETags()
    for etag in ("0", "0000", "0" * 32, "0" * 32 + "-1", "0" * 40 + "-10000", "0-1"):
        assert etags.prove_nothing(etag), etag
    for etag in ("", "1", "00000001", "0" * 31 + "1", "00-", "0-1-1", "-1", "W/0", "0" * 31 + "a", "00 "):
        assert not etags.prove_nothing(etag), etag


def test_the_record_is_bounded() -> None:
    """It begins again, and knows what it has found out."""
    etags = ETags()
    etags.dated("shared", "a", 1, None)
    etags.dated("shared", "b", 2, None)
    for page in range(20):
        etags.dated_entries([Entry(path=f"{page}/{n}", size=n, etag=f"{page}-{n}") for n in range(1000)])
    for number in range(20_000):
        etags.dated(f"e{number}", "a", number, None)
        etags.dated(f"e{number}", "b", number + 1, None)
    assert etags.prove_nothing("shared")
    assert sum(len(record) for record in vars(etags).values()) < 12_000
