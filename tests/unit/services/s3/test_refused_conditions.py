"""Stores that answer 412 to every ``If-Match`` of a read, for objects that are as they were."""

from pathlib import Path

import pytest

from aioprefetch.errors import ConditionNotMatch, ObjectChanged, PermissionDenied, ProtocolError
from tests.stores.key_server import Asked, Bent, KeyServer, Said, error

DATA = bytes(range(256)) * (80 << 10)  # 20 MiB


def refusing(server: KeyServer) -> Bent:
    def refuse(asked: Asked, right: Said) -> Said:
        return error(412, "PreconditionFailed") if "if-match" in asked.headers else server.done(asked)

    return Bent("get", refuse, times=1000)


async def test_reads_go_on_without_the_condition(tmp_path: Path) -> None:
    """After one refusal, for all reads of the runtime; writes and deletions keep theirs."""
    async with KeyServer({"k": DATA, "l": b"one"}) as server, server.operator() as op:
        server.bent = [refusing(server)]
        assert await op.read("k") == DATA
        async with op.reader("k") as reader:
            assert await reader.read_at(0, 10) == DATA[:10]
            assert await reader.read_at(15 << 20, 10) == DATA[15 << 20 :][:10]
        await op.download("k", tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == DATA
        refused = [asked for asked in server.asked if asked.verb == "get" and "if-match" in asked.headers]
        assert 1 <= len(refused) <= 8  # Those that were in flight side by side.
        assert "head" not in server.verbs
        etag = (await op.stat("l")).etag
        server.asked.clear()
        await op.write("l", b"two", if_match=etag)
        await op.delete("l", if_match=(await op.stat("l")).etag)
        assert [asked.verb for asked in server.asked if "if-match" in asked.headers] == ["put", "delete"]


async def test_the_comparison_stays() -> None:
    """No byte of another version counts."""
    async with KeyServer({"k": DATA}) as server, server.operator() as op:
        server.bent = [refusing(server)]
        assert await op.read("k") == DATA
        async with op.reader("k", prefetch_enabled=False) as reader:
            assert await reader.read_at(0, 10) == DATA[:10]
            server.put("k", DATA[::-1])
            with pytest.raises(ObjectChanged):
                await reader.read_at(15 << 20, 10)


async def test_a_right_refusal_is_one() -> None:
    """One is read again in a runtime, for an ETag that the store has sent, and the conditions go on."""
    async with KeyServer({"k": b"one"}) as server, server.operator() as op:
        with pytest.raises(ConditionNotMatch):
            await op.read("k", if_match="another")
        assert server.verbs == ["get"]
        etag = (await op.stat("k")).etag
        server.put("k", b"two")
        server.asked.clear()
        for _ in range(3):
            with pytest.raises(ConditionNotMatch):
                await op.read("k", if_match=etag)
        assert ["if-match" in asked.headers for asked in server.asked] == [True, False, True, True]


@pytest.mark.parametrize("look", [error(403, "AccessDenied"), Said(200, b"")], ids=str)
async def test_a_look_that_fails_teaches_nothing(look: Said) -> None:
    """The next refusal is looked at again."""
    async with KeyServer({"k": DATA}) as server, server.operator() as op:
        etag = (await op.stat("k")).etag

        def refuse(asked: Asked, right: Said) -> Said:
            return error(412, "PreconditionFailed") if "if-match" in asked.headers else look

        server.bent = [Bent("get", refuse, times=4 if look.status == 200 else 2)]
        with pytest.raises((PermissionDenied, ProtocolError)):
            await op.read("k", if_match=etag)
        server.bent = [refusing(server)]
        assert await op.read("k", if_match=etag) == DATA


async def test_an_empty_object_is_read_so_too() -> None:
    async with KeyServer({"k": b""}) as server, server.operator() as op:
        etag = (await op.stat("k")).etag
        server.bent = [refusing(server)]
        assert await op.read("k", if_match=etag) == b""
