"""What the suite for any library says of libraries whose mistakes are known."""

import asyncio
import http.client
import socket
import tempfile
import threading
import urllib.request
from collections.abc import Sequence
from typing import Any

import pytest

from aioprefetch.testing.library_suite import (
    LIBRARY_FAULTS,
    LibraryFault,
    LibraryOutcome,
    StoreAddress,
    outcome_table,
    run_library_suite,
)


def fault(job: str, says: str) -> LibraryFault:
    """The one fault of a job that begins so."""
    [found] = [one for one in LIBRARY_FAULTS if one.job == job and one.says.startswith(says)]
    return found


class Plain:
    """A library that believes what it gets."""

    def __init__(self, store: StoreAddress) -> None:
        self.root = f"{store.endpoint_url}/{store.bucket}/"

    def sent(self, method: str, path: str, data: bytes | None = None, **headers: str) -> bytes:
        request = urllib.request.Request(self.root + path, data, headers, method=method)
        with urllib.request.urlopen(request) as response:
            return bytes(response.read())

    def read(self, key: str) -> bytes:
        return self.sent("GET", key)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.sent("GET", key, Range=f"bytes={at}-{at + size - 1}") for at, size in ranges]

    def write(self, key: str, data: bytes) -> None:
        self.sent("PUT", key, data)

    def list(self, prefix: str) -> list[str]:
        raise NotImplementedError

    def copy(self, source: str, target: str) -> None:
        self.sent("PUT", target, b"", **{"x-amz-copy-source": f"bucket/{source}"})

    def move(self, source: str, target: str) -> None:
        self.copy(source, target)
        self.delete(source)

    def delete(self, key: str) -> None:
        self.sent("DELETE", key)


class Leaking(Plain):
    """Leaves something of each kind behind where a request fails, and one more socket after the first failure."""

    def __init__(self, store: StoreAddress) -> None:
        super().__init__(store)
        self.kept: list[Any] = []
        self.loop = asyncio.new_event_loop()

    def read(self, key: str) -> bytes:
        try:
            return super().read(key)
        except Exception:
            if not self.kept:
                self.kept.append(socket.socket())
            self.kept += socket.socketpair()
            self.kept.append(self.loop.create_task(asyncio.sleep(0)))
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            tempfile.mkstemp()
            raise

    def write(self, key: str, data: bytes) -> None:
        begun = self.sent("POST", f"{key}?uploads", b"").decode()
        upload = begun.partition("<UploadId>")[2].partition("<")[0]
        self.sent("PUT", f"{key}?partNumber=1&uploadId={upload}", data)
        part = b"<C><Part><PartNumber>1</PartNumber></Part></C>"
        self.sent("POST", f"{key}?uploadId={upload}", part)


class Pooling(Plain):
    """Opens a connection where there was a fault, and keeps one."""

    pool: http.client.HTTPConnection | None = None

    def read(self, key: str) -> bytes:
        if self.pool is None:
            self.pool = http.client.HTTPConnection(self.root.split("/")[2])
        self.pool.request("GET", f"/bucket/{key}")
        response = self.pool.getresponse()
        data = response.read()
        if response.status != 200:
            raise OSError(response.status)
        return data


class Broken(Plain):
    """Reads something else, without any fault."""

    def read(self, key: str) -> bytes:
        return b"something else"


async def outcome(library: Any, job: str, says: str, **options: Any) -> LibraryOutcome:
    [found] = await run_library_suite(library, faults=[fault(job, says)], **options)
    assert found.happened or found.found == "–"
    return found


async def test_mistakes_are_found() -> None:
    """In brackets is what was not met: all is written at once."""
    found = {
        ("read", "a page of a proxy"): "**wrong bytes**",
        ("read_ranges", "the object is overwritten"): "**wrong bytes**",
        ("write", "a 200 without a result"): "**lost**",
        ("write_parts", "one 500"): "(exact)",
        ("copy", "an error in a 200"): "**lost**",
        ("move", "an error in a 200"): "**lost**",
        ("delete", "a page of a proxy"): "**lost**",
        ("list", "a listing that is cut"): "–",
    }
    seen = await run_library_suite(Plain, faults=[fault(*names) for names in found])
    assert [str(one) for one in seen] == [*found.values()]


async def test_what_each_fault_leaves_is_counted() -> None:
    found = await outcome(Leaking, "read", "one 503")
    assert found.leaks == {"sockets": 2, "threads": 1, "tasks": 1, "files": 1}
    assert str(found) == "error, leaves 2 sockets, 1 thread, 1 task, 1 file"
    found = await outcome(Leaking, "write_parts", "each part")
    assert (found.error, found.leaks) == ("HTTPError", {"uploads": 1})


async def test_a_connection_that_is_kept_for_the_next_call_is_none() -> None:
    assert (await outcome(Pooling, "read", "one 503")).leaks == {}


async def test_a_library_that_never_ends_hangs() -> None:
    found = await outcome(Plain, "read", "no response", hang_seconds=3.0)
    assert (found.found, found.is_bad) == ("hangs", True)


async def test_a_library_that_does_not_work_without_a_fault_is_no_outcome() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await outcome(Broken, "read", "one 503")
    assert "Broken: read without a fault is wrong bytes" in str(caught.value.exceptions[0])


def test_the_table_counts_each_kind() -> None:
    one = fault("read", "one 503")
    mended = LibraryOutcome(fault=one, found="exact")
    leaks = LibraryOutcome(fault=one, found="error", leaks={"sockets": 1}, happened=False)
    assert outcome_table({"a": [mended], "b": [leaks]}) == (
        "| fault | job | a | b |\n| --- | --- | --- | --- |\n"
        "| one 503 | read | exact | (error, leaves 1 socket) |\n\n"
        "| library | exact | error | wrong bytes | lost | hangs | leaks |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| a | 1 | 0 | 0 | 0 | 0 | 0 |\n| b | 0 | 1 | 0 | 0 | 0 | 1 |\n"
    )
