"""Bodies that are sent at the pace of clients, who may leave; the life of the application."""

import asyncio
import logging
import math
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.testing import FaultLayer, FaultServer, content
from aioprefetch.values import ReadRequest
from tests.profile import each_of
from tests.stores.layer_stack import was_cancelled
from tests.unit.asgi.range_app import DATA, client_of, collector, never

DAY_SECONDS = 86_400
SEND_SECONDS = 30
WAIT_SECONDS = 2

# --- streaming --------------------------------------------------------------------------------------------------------


class Client:
    """A client that takes messages one by one, and may leave."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.gate = asyncio.Semaphore(0)
        self.gone = asyncio.Event()

    async def send(self, message: Any) -> None:
        await self.gate.acquire()
        self.messages.append(message)

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    @staticmethod
    def scope(path: str) -> dict[str, Any]:
        return {"type": "http", "method": "GET", "path": path, "headers": []}


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(200):
        await asyncio.sleep(0)


def reads_of(app: Any) -> list[ReadRequest]:
    """The reads that reached the store."""
    accessor: Any = app.operator.accessor()
    return [request for request in accessor.requests if isinstance(request, ReadRequest)]


async def test_a_slow_client_slows_the_reads() -> None:
    """One chunk is read ahead, and no more."""
    async with ap.Operator(ap.services.Memory()).layer(FaultLayer()) as op:
        await op.write("k", DATA)
        app, client = ap.asgi.RangeApp(op, chunk_bytes=1000), Client()
        serving = asyncio.create_task(app(client.scope("/k"), client.receive, client.send))
        await settle()
        assert len(reads_of(app)) == 1
        for taken in range(1, 20):
            client.gate.release()
            await settle()
            assert len(client.messages) == taken
            assert len(reads_of(app)) == taken + 1
        for _ in range(200):
            client.gate.release()
        await serving
        assert b"".join(message.get("body", b"") for message in client.messages) == DATA
        assert app.operator.runtime().budget.used_bytes == 0


async def test_a_client_that_leaves_ends_the_read() -> None:
    """Nothing is read after that, and its memory is free."""
    async with ap.Operator(ap.services.Memory()).layer(FaultLayer()) as op:
        await op.write("k", DATA)
        app, client = ap.asgi.RangeApp(op, chunk_bytes=1000), Client()
        serving = asyncio.create_task(app(client.scope("/k"), client.receive, client.send))
        client.gate.release()
        await settle()
        client.gone.set()
        await serving
        before = len(reads_of(app))
        client.gate.release()
        await settle()
        accessor: Any = app.operator.accessor()
        assert (len(reads_of(app)), accessor.in_flight) == (before, 0)
        assert app.operator.runtime().budget.used_bytes == 0


@each_of("path", ["/k", "/missing"])
@each_of("messages", [0, 1, 2])
async def test_a_server_that_says_so_by_an_error(path: str, messages: int) -> None:
    """As servers of ASGI 2.4 do. It is no failure of the application."""
    async with ap.Operator(ap.services.Memory()).layer(FaultLayer()) as op:
        await op.write("k", DATA)
        app, sent = ap.asgi.RangeApp(op, chunk_bytes=1000), list[Any]()

        async def send(message: Any) -> None:
            if len(sent) == messages:
                raise ConnectionResetError("the client has left")
            sent.append(message)

        await app(Client.scope(path), never, send)
        assert len(sent) == messages
        assert len(reads_of(app)) <= 1 + messages
        assert app.operator.runtime().budget.used_bytes == 0


async def test_cancelled_at_every_suspension_nothing_is_left_behind() -> None:
    suspension, cancelled = 0, True
    while cancelled:
        suspension += 1
        async with ap.Operator(ap.services.Memory()).layer(FaultLayer()) as op:
            await op.write("k", DATA)
            app = ap.asgi.RangeApp(op, chunk_bytes=40_000)
            sent: list[Any] = []
            scope = Client.scope("/k")
            cancelled = await was_cancelled(app(scope, never, collector(sent)), suspension)
            await settle()
            accessor: Any = app.operator.accessor()
            assert (accessor.in_flight, app.operator.runtime().budget.used_bytes) == (0, 0)
    assert b"".join(message.get("body", b"") for message in sent) == DATA


@pytest.mark.virtual
async def test_too_many_slow_clients_are_sent_away() -> None:
    """Their bodies would not fit into memory together."""
    op = ap.Operator(ap.services.Memory(), memory_bytes=1 << 20, block_bytes=1 << 16, budget_wait_seconds=5)
    async with op:
        await op.write("k", content(1 << 20))
        app = ap.asgi.RangeApp(op, chunk_bytes=1 << 18)
        slow = [Client() for _ in range(6)]
        serving = [asyncio.create_task(app(one.scope("/k"), one.receive, one.send)) for one in slow]
        await settle()
        late = Client()
        for _ in range(2):
            late.gate.release()
        await app(late.scope("/k"), late.receive, late.send)
        assert late.messages[0]["status"] == 503
        for one in slow:
            one.gone.set()
        await asyncio.gather(*serving)
        assert app.operator.runtime().budget.used_bytes == 0


async def test_clients_that_wait_for_memory_hold_none() -> None:
    """Their objects are described and not read; when clients leave, all are served."""
    op = ap.Operator(ap.services.Memory(), memory_bytes=1 << 20, block_bytes=1 << 16).layer(FaultLayer())
    async with op:
        data = content(1 << 20)
        await op.write("k", data)
        await op.write("short", DATA[: 64 << 10])
        app = ap.asgi.RangeApp(op, chunk_bytes=1 << 18)
        clients = [Client() for _ in range(20)]
        serving = [asyncio.create_task(app(one.scope("/k"), one.receive, one.send)) for one in clients]
        await settle()
        assert len(reads_of(app)) <= 2, "one body fits into the share, and one may exceed it"
        hasty = Client()
        for _ in range(2):
            hasty.gate.release()
        await app(hasty.scope("/short"), hasty.receive, hasty.send)
        assert hasty.messages[1]["body"] == DATA[: 64 << 10], "a short body need not wait"
        for one in clients:
            for _ in range(20):
                one.gate.release()
        await asyncio.gather(*serving)
        for one in clients:
            assert b"".join(message.get("body", b"") for message in one.messages) == data
        assert app.operator.runtime().budget.used_bytes == 0


@pytest.mark.virtual
async def test_a_client_that_takes_nothing_is_sent_away(caplog: pytest.LogCaptureFixture) -> None:
    """After ``send_seconds``, however long it has taken something before. Its memory is free then."""
    async with ap.Operator(ap.services.Memory()).layer(FaultLayer()) as op:
        await op.write("k", DATA)
        cases: list[tuple[int, dict[str, Any]]] = [(SEND_SECONDS, {}), (5, {"send_seconds": 5})]
        for seconds, options in cases:
            app, client = ap.asgi.RangeApp(op, chunk_bytes=40_000, **options), Client()
            with caplog.at_level(logging.INFO, "aioprefetch"):
                serving = asyncio.create_task(app(client.scope("/k"), client.receive, client.send))
                for taken in range(3):
                    await asyncio.sleep(seconds - 1)
                    assert not serving.done(), taken
                    client.gate.release()
                await asyncio.sleep(seconds - 0.1)
                assert app.operator.runtime().budget.used_bytes > 0
                assert not serving.done()
                began = asyncio.get_running_loop().time()
                await serving
            assert asyncio.get_running_loop().time() - began == pytest.approx(0.1)
            assert len(client.messages) == 3
            assert f"send_seconds={seconds}" in caplog.messages[-1]
            assert app.operator.runtime().budget.used_bytes == 0


@pytest.mark.virtual
async def test_without_a_limit_a_client_may_take_its_time() -> None:
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("k", DATA)
        app, client = ap.asgi.RangeApp(op, chunk_bytes=40_000, send_seconds=math.inf), Client()
        serving = asyncio.create_task(app(client.scope("/k"), client.receive, client.send))
        while not serving.done():
            await asyncio.sleep(DAY_SECONDS)
            client.gate.release()
        assert b"".join(message.get("body", b"") for message in client.messages) == DATA


@pytest.mark.virtual
@pytest.mark.parametrize("share", [None, 0.25])
async def test_clients_that_take_nothing_have_a_share_of_the_memory(share: float | None) -> None:
    """The program reads beside them, and each of those that find no place is sent away with a time to come again."""
    op = ap.Operator(ap.services.Memory(), memory_bytes=16 << 20, block_bytes=1 << 20, budget_wait_seconds=WAIT_SECONDS)
    async with op:
        await op.write("big", content(5 << 20))
        options: dict[str, Any] = {} if share is None else {"memory_share": share}
        app = ap.asgi.RangeApp(op, **options)
        beside = ap.asgi.RangeApp(op, **options)
        clients = [Client() for _ in range(40)]
        for one in clients:
            one.gate.release()
        serving = [
            asyncio.create_task((app, beside)[number % 2](one.scope("/big"), one.receive, one.send))
            for number, one in enumerate(clients)
        ]
        await asyncio.sleep(WAIT_SECONDS + 1)
        heads = [one.messages[0]["status"] for one in clients]
        held = round((share or 0.5) * 16 / 2)
        assert heads.count(200) in (held, held + 1)
        assert heads.count(503) == 40 - heads.count(200)
        refused = next(one for one in clients if one.messages[0]["status"] == 503)
        assert (b"retry-after", b"1") in refused.messages[0]["headers"]
        async with op.reader("big") as reader:
            for number in range(5):
                assert len(await reader.read_at(number << 20, 1 << 20)) == 1 << 20
        await asyncio.sleep(SEND_SECONDS)
        assert all(one.done() for one in serving)
        assert await asyncio.gather(*serving) == [None] * 40


@each_of("header", [None, "bytes=0-79999", "bytes=-80000", "bytes=0-39999,60000-99999"])
@each_of("condition", [None, "if-match"])
async def test_bodies_of_one_chunk_count_too(header: str | None, condition: str | None) -> None:
    """However many clients do not take them. With the last one the budget may be exceeded."""
    op = ap.Operator(ap.services.Memory(), memory_bytes=1 << 20, block_bytes=1 << 16).layer(FaultLayer())
    async with op:
        await op.write("k", DATA)
        fields = {b"range": header, b"if-match": None if condition is None else "*"}
        headers = [(name, text.encode()) for name, text in fields.items() if text is not None]
        app = ap.asgi.RangeApp(op, chunk_bytes=200_000, memory_share=1)
        clients = [Client() for _ in range(40)]
        budget = app.operator.runtime().budget
        serving = [
            asyncio.create_task(app(one.scope("/k") | {"headers": headers}, one.receive, one.send)) for one in clients
        ]
        await settle()
        size = 100_000 if header is None else 80_000
        assert 1 << 20 <= budget.used_bytes <= (1 << 20) + size
        assert len(reads_of(app)) <= 2 * (1 + (1 << 20) // size)
        for one in clients:
            one.gate.release()
        await settle()
        begun = [one for one in clients if one.messages]
        assert 0 < len(begun) < 40, "and until they are taken to the end"
        for one in clients:
            for _ in range(9):
                one.gate.release()
        await asyncio.gather(*serving)
        sizes = {sum(len(message.get("body", b"")) for message in one.messages) for one in clients}
        assert min(sizes) >= size
        assert {one.messages[0]["status"] for one in clients} <= {200, 206}
        assert budget.used_bytes == 0


async def test_messages_are_short() -> None:
    """A server that has taken one lets the next one wait; the last one is with the server."""
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("k", content(700_000))
        for headers in ([], [(b"range", b"bytes=1-200000,300000-500000")]):
            sent: list[Any] = []
            await ap.asgi.RangeApp(op)(Client.scope("/k") | {"headers": headers}, never, collector(sent))
            assert max(len(message["body"]) for message in sent[1:]) == 64 << 10
            assert [message["more_body"] for message in sent[1:]] == [True] * (len(sent) - 2) + [False]


@pytest.mark.parametrize("path", ["/short", "/empty", "/missing"])
async def test_no_memory_is_kept_for_what_is_no_long_body(path: str) -> None:
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("short", DATA[: 64 << 10])
        await op.write("empty", b"")
        app, client = ap.asgi.RangeApp(op), Client()
        client.gate.release()
        serving = asyncio.create_task(app(client.scope(path), client.receive, client.send))
        await settle()
        assert len(client.messages) == 1
        assert app.operator.runtime().budget.used_bytes == 0
        client.gate.release()
        await serving


async def test_twenty_small_ranges_move_their_bytes_over_one_connection() -> None:
    """Out of a large object, from both ends."""
    data = content(16 << 20)
    async with FaultServer({"k": data}) as server, ap.Operator.from_uri(server.url) as op, client_of(op) as client:
        for number in range(20):
            start = number * 700_001
            header = f"bytes={start}-{start + 499}" if number % 2 else "bytes=-500"
            response = await client.get("/k", headers={"Range": header})
            assert response.content == (data[start : start + 500] if number % 2 else data[-500:])
        assert server.connections == 1
        assert server.bytes_sent <= 20 * 500
        assert [request.method for request in server.requests] == ["GET"] * 20


# --- life -------------------------------------------------------------------------------------------------------------


async def test_a_lifespan_of_its_own_gives_up_the_connections() -> None:
    """The operator stays its owner's."""
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("k", b"bytes")
        app = ap.asgi.RangeApp(op)
        await app(Client.scope("/k"), never, collector([]))
        runtime = op.runtime()
        assert runtime.holders == 2
        inbox = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        sent: list[Any] = []

        async def receive() -> Any:
            return inbox.pop(0)

        await app({"type": "lifespan"}, receive, collector(sent))
        assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert runtime.holders == 1
        assert await op.read("k") == b"bytes"


async def test_other_protocols_are_refused() -> None:
    app = ap.asgi.RangeApp(ap.Operator(ap.services.Memory()))
    sent: list[Any] = []
    await app({"type": "websocket"}, never, collector(sent))
    assert sent == [{"type": "websocket.close", "code": 1008}]
    with pytest.raises(ap.InvalidType, match="http"):
        await app({"type": "gopher"}, never, collector(sent))


@each_of(
    ("options", "error", "said"),
    [
        ({"send_seconds": 0}, ap.ConfigInvalid, "send_seconds"),
        ({"send_seconds": None}, ap.ConfigInvalid, "send_seconds"),
        ({"memory_share": 0}, ap.ConfigInvalid, "memory_share"),
        ({"memory_share": 1.01}, ap.ConfigInvalid, "memory_share"),
        ({"memory_share": "half"}, ap.ConfigInvalid, "memory_share"),
        ({"headers": {"X y": "z"}}, ap.InvalidArgument, "X y"),
        ({"headers": {"Content-Length": "7"}}, ap.InvalidArgument, "Content-Length"),
        ({"headers": {"ETag": "7"}}, ap.InvalidArgument, "ETag"),
        ({"headers": {7: "z"}}, ap.InvalidArgument, "7"),
        ({"headers": {"X": "a\r\nb"}}, ap.InvalidArgument, "'X'"),
        ({"headers": {"X": "\u20ac"}}, ap.InvalidArgument, "'X'"),
        ({"headers": {"X": 7}}, ap.InvalidType, "'X'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ap.asgi.RangeApp(ap.Operator(ap.services.Memory()), **options)


def test_what_is_no_operator_is_refused() -> None:
    wrong: Any = "s3://bucket"
    with pytest.raises(ap.InvalidType):
        ap.asgi.RangeApp(wrong)
    with pytest.raises(ap.ConfigInvalid):
        ap.asgi.RangeApp(ap.Operator(ap.services.Memory()), chunk_bytes=0)
    with pytest.raises(ap.InvalidArgument, match="must not begin with /"):
        ap.asgi.RangeApp(ap.Operator(ap.services.Memory()), prefix="/data")


@each_of(
    ("cache_control", "error"),
    [
        (3, ap.InvalidType),
        (b"no-store", ap.InvalidType),
        ("a\n", ap.InvalidArgument),
        ("\u20ac", ap.InvalidArgument),
    ],
)
def test_what_no_header_can_hold_is_refused(cache_control: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="cache_control"):
        ap.asgi.RangeApp(ap.Operator(ap.services.Memory()), cache_control=cache_control)
