"""Thousands of connections, good and damaged responses: exact bytes, or an error of ours and a closed connection."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from aioprefetch.errors import Closed, Error, ProtocolError, Unavailable
from aioprefetch.transport.responses import parse_head
from tests.profile import chosen
from tests.stores.wire import Memory, Taker, Wire
from tests.unit.transport.generated import Sent, draw_response, mutate, split
from tests.unit.transport.model import Refused, read_head, read_receiver

CASES = chosen(quick=2_000, full=10_000)
BLOCKS = CASES // 1_000
HEADS = chosen(quick=4_000, full=20_000)
RESPONSES_MAX = 3


@dataclass
class Case:
    """One connection. Its whole course follows from ``seed``."""

    seed: int

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.mode = self.rng.choice(("selector", "selector", "tls", "rude"))
        self.is_damaged = self.rng.random() < 0.6
        self.outcomes: Counter[str] = Counter()

    def run(self) -> None:
        """Send requests until the connection is of no more use."""
        rng = self.rng
        wire = Wire(self.mode, peeks=rng.random() < 0.5, rng=rng)
        number = 0
        for number in range(RESPONSES_MAX):
            sent = draw_response(rng)
            is_last = number == RESPONSES_MAX - 1
            stream = sent.stream
            if self.is_damaged and (is_last or rng.random() < 0.5):
                stream = mutate(rng, stream, sent.body_at)
            wire.connection.is_reused = number > 0
            if not self._response(wire, sent, stream, has_fin=rng.random() < 0.7):
                break
        wire.end()
        assert wire.lost == 1
        assert wire.loop.complaints == []

    def _response(self, wire: Wire, sent: Sent, stream: bytes, *, has_fin: bool) -> bool:
        """One request and its response; whether another request may follow."""
        rng, connection = self.rng, wire.connection
        pieces = [rng.choice((1, 50, 4096)) for _ in range(rng.randrange(5))]
        taker = Taker(pieces=pieces, is_roomy=rng.random() < 0.3)
        if rng.random() < 0.3:
            taker.on_begin = self._pauser(wire)
        done = connection.send(b"GET", taker, is_head=sent.is_head)
        wire.feed(stream, *split(rng, len(stream)))
        self._resume_to_the_end(wire)
        if rng.random() < 0.05 and not done.done():
            self._close(wire, taker, done)
            return False
        model = read_receiver(stream, is_head=sent.is_head, has_fin=has_fin)
        if not done.done():
            wire.end(None if has_fin else ConnectionResetError(104, "reset"))
        assert done.done(), "it hangs"
        error = done.exception()
        content = taker.content()
        assert model.body.startswith(content), "bytes that the peer never sent"
        if error is None:
            self.outcomes["exact"] += 1
            assert (content, model.is_whole) == (model.body, True), "the body ended too early"
        else:
            self.outcomes["refused" if model.is_whole else "failed"] += 1
            assert isinstance(error, ProtocolError | Unavailable), repr(error)
            assert wire.transport.closed
        if stream == sent.stream and (has_fin or not sent.ends_with_connection):
            assert error is None, f"a good response was refused: {error!r}"
            assert content == sent.body
        wire.turn()
        # What follows the response closes the connection, at the latest before the next request is sent.
        assert connection.is_usable == (error is None and model.is_reusable)
        return connection.is_usable

    def _pauser(self, wire: Wire) -> "Pauser":
        return Pauser(wire, random.Random(self.rng.random()))

    def _resume_to_the_end(self, wire: Wire) -> None:
        while wire.transport.paused and not wire.transport.closed:
            wire.connection.resume()
            wire.receive()

    def _close(self, wire: Wire, taker: Taker, done: asyncio.Future[float]) -> None:
        before = taker.content()
        wire.connection.close()
        assert isinstance(done.exception(), Closed)
        wire.transport.closed = False  # As if the loop had more for it at the same moment.
        wire.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nworld")
        wire.transport.closed = True
        wire.turn()
        assert taker.content() == before
        self.outcomes["closed"] += 1


@dataclass
class Pauser:
    """Pauses the connection now and then, as a receiver without memory does."""

    wire: Wire
    rng: random.Random

    def __call__(self, memory: Memory) -> None:
        memory.on_advance = self._advanced

    def _advanced(self) -> None:
        if self.rng.random() < 0.2:
            self.wire.connection.pause()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_exact_bytes_or_an_error_and_a_closed_connection(block: int) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(block * CASES // BLOCKS, (block + 1) * CASES // BLOCKS):
        case = Case(seed)
        try:
            case.run()
        except Exception as error:
            pytest.fail(f"Case({seed}).run() failed: {error!r}")
        outcomes += case.outcomes
    # The generator is of use: there are plenty of all kinds, and next to nothing is refused that need not be.
    assert outcomes["exact"] > CASES // BLOCKS
    assert outcomes["failed"] > CASES // BLOCKS // 10
    assert outcomes["closed"] > 0
    assert outcomes["refused"] < CASES // BLOCKS // 50, outcomes


def test_heads_are_accepted_by_the_letter() -> None:
    """What is accepted is what the grammar allows, and it is read alike."""
    rng = random.Random(7)
    accepted = stricter = 0
    for number in range(HEADS):
        sent = draw_response(rng)
        while sent.body_at > 2000:
            sent = draw_response(rng)
        data = mutate(rng, sent.stream[: sent.body_at], sent.body_at)
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            continue
        data = data[:end]
        is_head = rng.random() < 0.2
        try:
            found = parse_head(memoryview(data), is_head=is_head)
        except Error:
            try:
                read_head(data, is_head=is_head)
            except Refused:
                continue
            stricter += 1
            continue
        accepted += 1
        try:
            expected = read_head(data, is_head=is_head)
        except Refused as error:
            pytest.fail(f"head {number} is accepted, but for its {error}: {data!r}")
        assert found.status == expected.status
        assert (found.length, found.is_chunked) == (expected.length, expected.is_chunked), data
        assert found.keeps_alive == expected.keeps_alive, data
        joined: dict[bytes, bytes] = {}
        for name, value in expected.fields:
            joined[name] = joined[name] + b", " + value if name in joined else value
        assert found.fields == joined, data
    assert accepted > HEADS // 20
    assert stricter < HEADS // 100, stricter
