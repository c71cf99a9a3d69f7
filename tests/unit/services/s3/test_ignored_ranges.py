"""Stores that ignore ``Range`` where ``versionId`` is given: reads of one version go by its ETag."""

from pathlib import Path

import pytest

from aioprefetch.errors import ObjectChanged, ProtocolError
from tests.stores.key_server import Asked, Bent, KeyServer, Said

DATA = bytes(range(256)) * (80 << 10)  # 20 MiB


def ignoring(server: KeyServer) -> Bent:
    """Each version is the current one, and comes whole where it is named."""

    def say(asked: Asked, right: Said) -> Said:
        headers = {
            name: text for name, text in asked.headers.items() if name != "range" or "versionId" not in asked.query
        }
        said = server.done(Asked(asked.verb, asked.key, asked.query, headers, asked.body))
        return Said(
            said.status, said.body, {**said.headers, "x-amz-version-id": server.etag(server.objects[asked.key])}
        )

    return Bent("get", say, times=1000)


async def test_reads_of_one_version_go_by_its_etag(tmp_path: Path) -> None:
    """Learned from one response, which ends at its head; then no request of the runtime names the version."""
    async with KeyServer({"k": DATA}) as server, server.operator() as op:
        server.bent = [ignoring(server)]
        assert await op.read("k") == DATA
        async with op.reader("k") as reader:
            assert await reader.read_at(0, 10) == DATA[:10]
            assert await reader.read_at(15 << 20, 10) == DATA[15 << 20 :][:10]
        assert await op.read_ranges("k", [(0, 5), (18 << 20, (18 << 20) + 5)]) == [DATA[:5], DATA[18 << 20 :][:5]]
        await op.download("k", tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == DATA
        named = [asked for asked in server.asked if "versionId" in asked.query]
        assert 1 <= len(named) <= 8  # Those that were in flight side by side.
        assert all("if-match" in asked.headers for asked in named)


async def test_no_byte_of_another_version_counts() -> None:
    async with KeyServer({"k": DATA}) as server, server.operator() as op:
        server.bent = [ignoring(server)]
        async with op.reader("k", prefetch_enabled=False) as reader:
            assert await reader.read_at(0, 10) == DATA[:10]
            assert await reader.read_at(9 << 20, 10) == DATA[9 << 20 :][:10]
            server.put("k", DATA[::-1])
            with pytest.raises(ObjectChanged):
                await reader.read_at(15 << 20, 10)


async def test_a_range_of_a_version_alone_is_not_served() -> None:
    """Without an ETag the current version may be another one."""
    async with KeyServer({"k": DATA}) as server, server.operator() as op:
        server.bent = [ignoring(server)]
        version = server.etag(DATA)
        with pytest.raises(ProtocolError, match="did not obey Range"):
            await op.read("k", offset=5, size=5, version=version)
        assert await op.read("k") == DATA
        with pytest.raises(ProtocolError, match="did not obey Range"):
            await op.read("k", offset=5, size=5, version=version)


async def test_a_wrong_range_of_a_version_is_an_error() -> None:
    """A response that names a range is no whole object."""
    async with KeyServer({"k": DATA}) as server, server.operator() as op:
        server.bent = [ignoring(server)]
        async with op.reader("k", prefetch_enabled=False) as reader:
            assert await reader.read_at(0, 10) == DATA[:10]
            wrong = {"ETag": f'"{server.etag(DATA)}"', "Content-Range": f"bytes 0-9/{len(DATA)}"}
            server.bent = [Bent("get", Said(200, DATA[:10], wrong), times=9)]
            with pytest.raises(ProtocolError):
                await reader.read_at(15 << 20, 10)
            assert all("versionId" in asked.query for asked in server.asked[1:])
