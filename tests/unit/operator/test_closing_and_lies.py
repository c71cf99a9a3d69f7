"""Over real sockets: closing while a body hangs, sizes that are lies, late threads."""

import asyncio
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.testing import Fault, FaultServer, Rule
from tests.probes.programs import completed

DATA = bytes(range(256)) * 400


def http(server: FaultServer, **options: Any) -> ap.Operator:
    """The bucket's objects over plain HTTP."""
    return ap.Operator.from_uri(f"{server.url}/bkt", **options)


def s3(server: FaultServer, **options: Any) -> ap.Operator:
    """The same over the s3 service."""
    keys: dict[str, Any] = {"access_key_id": "id", "secret_access_key": "secret"}
    return ap.Operator.from_uri("s3://bkt", endpoint_url=server.url, region="us-east-1", **keys, **options)


Open = Callable[..., ap.Operator]


@pytest.mark.parametrize("connect", [http, s3])
async def test_closing_ends_a_read_that_hangs_in_its_body(connect: Open) -> None:
    """At once, and by name: closing needs no response from the network."""
    async with FaultServer({"bkt/k": DATA}, [Rule(fault=Fault(hang_after_bytes=1000), times=None)]) as server:
        operator = connect(server)
        reading = asyncio.create_task(operator.read("k"))
        await server.wait_for_requests(1)
        for _ in range(100_000):
            if server.bytes_sent == 1000:
                break
            await asyncio.sleep(0)
        assert server.bytes_sent == 1000
        for _ in range(10):  # The head has left with these bytes: a turn or two later they have arrived.
            await asyncio.sleep(0)
        await operator.aclose()
        async with asyncio.timeout(5):
            with pytest.raises(ap.Closed) as ended:
                await reading
        assert (ended.value.operation, ended.value.path) == ("read", "k")


async def test_a_size_that_is_a_lie_costs_nothing() -> None:
    """Steps are made as they are read, so a petabyte that is not there ends as a short object does."""
    async with ap.Operator.from_uri("memory://lies") as operator:
        etag = (await operator.write("k", b"x" * 1000)).etag
        async with operator.reader("k", size=1 << 50, etag=etag) as reader, asyncio.timeout(5):
            reader.will_need([(0, 1 << 50)])
            assert await reader.read() == b"x" * 1000
            with pytest.raises(EOFError):
                await reader.read_exactly_at(0, 1 << 50)


async def test_what_has_been_read_is_in_the_cache_when_the_operator_closes(tmp_path: Path) -> None:
    """A process that reads once and ends finds it there the next time."""
    async with ap.Operator.from_uri("memory://flushed") as source:
        await source.write("k", DATA)
        hits = []
        for _ in range(2):
            async with ap.Operator.from_uri(f"file://{tmp_path}/cache") as cache:
                operator = source.layer(ap.layers.LruCacheLayer(cache=cache))
                before = operator.statistics["cache_hits"]
                async with operator:
                    assert await operator.read("k") == DATA
                    hits.append(operator.statistics["cache_hits"] - before)
        assert hits == [0, 1]


def test_files_are_read_by_threads_that_outlive_the_main_one(tmp_path: Path) -> None:
    """The interpreter ends its executors before it waits for such threads. Built-in files work there; so do ours."""
    (tmp_path / "f").write_bytes(DATA)
    script = textwrap.dedent(
        f"""
        import threading
        import aioprefetch as ap

        file = ap.sync.open("file://{tmp_path}/f", block_bytes=4096, memory_bytes=8192)
        file.read(10)
        main = threading.current_thread()

        def work():
            main.join()
            print(len(file.read_at(50_000, 100)))
            file.close()

        threading.Thread(target=work).start()
        """
    )
    done = completed([sys.executable, "-c", script])
    assert (done.stdout.strip(), done.stderr) == ("100", "")


def test_a_path_for_the_sync_file_must_be_text() -> None:
    """A typed error, not an AttributeError."""
    with pytest.raises(ap.InvalidType):
        ap.sync.open(3)  # type: ignore[call-overload]
