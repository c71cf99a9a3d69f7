"""Whole reads without a listener, in Python calls of the package: what events may cost there is nothing."""

import pytest

import aioprefetch as ap
from aioprefetch.services import Memory
from aioprefetch.sync import BlockingOperator
from tests.probes.calls import counted_calls
from tests.stores.raw_server import Peer, RawServer, reply

# What they took before there were events, by Python 3.11: later versions have no calls for comprehensions.
S3_READ_CALLS = 70
BLOCKING_HIT_CALLS = 14

READS = 8


async def send_ranges(peer: Peer) -> None:
    """Each response is ``bytes=10-109`` of an object of 1000 bytes."""
    response = reply(bytes(100), b"Content-Range: bytes 10-109/1000", b'ETag: "e"', status=b"206 Partial Content")
    while await peer.request():
        await peer.send(response)


async def calls_of_s3_read(*, listens: bool) -> int:
    """The calls of one read, of several the fewest: a response may come in pieces."""
    counts = []
    async with RawServer(send_ranges) as server:
        service = ap.services.S3(
            bucket="bucket",
            endpoint_url=f"http://{server.origin.netloc}",
            region="us-east-1",
            access_key_id="key",
            secret_access_key="secret",
        )
        async with ap.Operator(service) as op:
            await op.read("k", offset=10, size=100)
            if listens:
                op.events.subscribe(lambda event: None)
            for _ in range(READS):
                with counted_calls(of_package=True) as calls:
                    assert await op.read("k", offset=10, size=100) == bytes(100)
                counts.append(calls.number)
        assert server.requests == READS + 1
    return min(counts)


def calls_of_blocking_hit(*, listens: bool) -> int:
    """The calls of one read of a resident block."""
    with BlockingOperator(ap.Operator(Memory())) as op:
        op.write("k", bytes(1000))
        with op.open("k") as file:
            file.read(10)
            if listens:
                op.events.subscribe(lambda event: None)
            counts = []
            for _ in range(READS):
                with counted_calls(of_package=True) as calls:
                    assert file.read(10) == bytes(10)
                counts.append(calls.number)
    return min(counts)


@pytest.mark.cost
async def test_an_s3_read_takes_the_calls_it_took_without_events() -> None:
    assert 10 < await calls_of_s3_read(listens=False) <= S3_READ_CALLS
    assert await calls_of_s3_read(listens=True) > S3_READ_CALLS


@pytest.mark.cost
def test_a_blocking_hit_takes_the_calls_it_took_without_events() -> None:
    assert 0 < calls_of_blocking_hit(listens=False) <= BLOCKING_HIT_CALLS
    assert calls_of_blocking_hit(listens=True) > BLOCKING_HIT_CALLS
