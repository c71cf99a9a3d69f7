"""Receivers that raise, have no room, or do not want the response: the connection is closed, and its place is free."""

from typing import Any

import pytest

from aioprefetch.errors import ProtocolError
from aioprefetch.testing.oracle import content
from tests.profile import each_of
from tests.stores.raw_server import RawServer, answering, client_of, eventually, reply
from tests.stores.wire import Memory, Taker

LARGE = content(100_000)


class Refusal(Exception):
    pass


class Spoiled(Memory):
    """Raises at the n-th call of one of its methods."""

    def __init__(self, size: int | None, where: str, calls: int) -> None:
        super().__init__(size, pieces=[10_000] * 20)
        self._where = where
        self._calls = calls

    def _check(self, where: str) -> None:
        if where == self._where:
            self._calls -= 1
            if self._calls == 0:
                raise Refusal(where)

    def writable(self) -> memoryview:
        self._check("writable")
        return super().writable()

    def advance(self, count: int) -> None:
        self._check("advance")
        super().advance(count)

    def feed(self, chunk: memoryview) -> int:
        self._check("feed")
        return super().feed(chunk)


class Spoiling(Taker):
    def __init__(self, where: str, calls: int) -> None:
        super().__init__()
        self._spoil = where, calls

    def begin(self, head: Any, connection: Any) -> Memory:
        if self._spoil[0] == "begin":
            raise Refusal("begin")
        return Spoiled(head.length, *self._spoil)


@each_of("chunked", [False, True])
@each_of("where", ["begin", "feed", "writable", "advance"])
@each_of("calls", [1, 3])
async def test_a_receiver_that_fails_closes_the_connection(where: str, calls: int, chunked: bool) -> None:
    if chunked and where in ("writable", "advance"):
        return  # Such a body is fed.
    sent = reply(LARGE)
    if chunked:
        sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n%b\r\n" % LARGE[:1000] * 100
        sent += b"0\r\n\r\n"
    elif where == "feed":
        calls = 1
    async with RawServer(answering(sent)) as server, client_of(connections_per_host_max=1) as client:
        for _ in range(2):
            with pytest.raises(Refusal, match=where):
                await client.fetch(server.target(), b"", Spoiling(where, calls))
            await eventually(lambda: client.snapshot().open == 0 and server.open == 0)


async def test_a_destination_without_room_is_not_overrun() -> None:
    """It took less memory than the head promises: that is an error, and nothing is written elsewhere."""

    class Small(Taker):
        def begin(self, head: Any, connection: Any) -> Memory:
            self.memory = Memory(1000)
            return self.memory

    class Full(Memory):
        def writable(self) -> memoryview:
            return super().writable() if self.received < 70_000 else memoryview(b"")

    class Filling(Taker):
        def begin(self, head: Any, connection: Any) -> Memory:
            self.memory = Full(head.length, pieces=[70_000, 30_000])
            return self.memory

    async with RawServer(answering(reply(LARGE))) as server, client_of() as client:
        for taker, room in ((Small(), 1000), (Filling(), 70_000)):
            with pytest.raises(ProtocolError, match="more bytes than were asked for"):
                await client.fetch(server.target(), b"", taker)
            assert LARGE.startswith(taker.content())
            assert len(taker.content()) <= room
            await eventually(lambda: client.snapshot().open == 0)


async def test_a_body_that_is_not_wanted_closes_the_connection() -> None:
    class Indifferent(Taker):
        def begin(self, head: Any, connection: Any) -> Any:
            self.heads.append(head)

    async with RawServer(answering(reply(LARGE))) as server, client_of() as client:
        taker = Indifferent()
        await client.fetch(server.target(), b"", taker)
        assert taker.heads[0].status == 200
        await eventually(lambda: client.snapshot().open == 0)
