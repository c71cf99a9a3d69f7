"""A store that asks for fewer requests for half a minute, on the virtual clock."""

import asyncio
from dataclasses import dataclass, field

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import BudgetExhausted, Error, Throttled
from aioprefetch.layers import ConcurrentLimitLayer, RetryLayer, TimeoutLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import assert_same_bytes, content
from aioprefetch.values import ReadReply, ReadRequest
from tests.stores.verb_layer import VerbLayer

OUTAGE_SECONDS = 30.0
READS = 1000
READS_PER_SECOND = 10
RESPONSE_SECONDS = 0.1
READERS = 64
DATA = content(1000)


@dataclass(eq=False)
class SlowDown(VerbLayer):
    """A store that throttles everything until a time of the loop's clock. ``sent`` are the times of all requests.

    Each takes ``answer_seconds``. ``in_flight`` is how many were under way when each of them came, itself included.
    """

    until_seconds: float
    sent: list[float]
    response_seconds: float = 0.0
    in_flight: list[int] = field(default_factory=list)
    now_in_flight: int = 0

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        now = asyncio.get_running_loop().time()
        self.now_in_flight += 1
        self.sent.append(now)
        self.in_flight.append(self.now_in_flight)
        try:
            await asyncio.sleep(self.response_seconds)
            if now < self.until_seconds:
                raise Throttled("SlowDown", operation="read", path=request.path)
            return await inner.read(request, sink)
        finally:
            self.now_in_flight -= 1


@pytest.mark.virtual
@pytest.mark.parametrize(
    "response_seconds", [0.0, RESPONSE_SECONDS, 3 * RESPONSE_SECONDS], ids=["at-once", "soon", "late"]
)
@checks("reliability:S04")
async def test_half_a_minute_of_slow_down(response_seconds: float) -> None:
    """The load does not grow by more than a fifth, pauses are long, and what comes afterwards is as before."""
    sent: list[float] = []
    store = SlowDown(OUTAGE_SECONDS, sent, response_seconds)
    bare = Operator.bare(Memory()).layer(store)
    # The default stack, with the store that throttles in its place as the innermost.
    operator = bare.layer(TimeoutLayer()).layer(ConcurrentLimitLayer()).layer(RetryLayer())
    failed: dict[float, Error] = {}
    loop = asyncio.get_running_loop()

    async def read() -> None:
        begun = loop.time()
        try:
            assert_same_bytes(await operator.read("k"), DATA)
        except Error as error:
            failed[begun] = error

    async with operator:
        await operator.write("k", DATA)
        async with asyncio.TaskGroup() as group:
            for _ in range(READS):
                group.create_task(read())
                await asyncio.sleep(1 / READS_PER_SECOND)
        during = [time for time in sent if time < OUTAGE_SECONDS]
        # What so few reads send in the outage is bounded by the tokens, and where the store is slow by the slots.
        bound = 0.8 if response_seconds > RESPONSE_SECONDS else 1.4
        assert len(during) <= bound * OUTAGE_SECONDS * READS_PER_SECOND
        assert len(sent) <= 1.2 * READS
        assert {type(error) for error in failed.values()} <= {Throttled, BudgetExhausted}
        assert all(error.status == "persistent" for error in failed.values())
        assert max(failed) < OUTAGE_SECONDS
        counts = operator.statistics
        assert counts["throttled"] == len(during)
        assert counts["retries_throttled"] == len(sent) - READS
        bucket = RetryLayer().bucket(operator.runtime())
        assert bucket.tokens > bucket.capacity // 2


@pytest.mark.virtual
@checks("reliability:S04")
async def test_fewer_requests_at_once_while_it_lasts_and_all_of_them_afterwards() -> None:
    """Readers that never pause: half as many in flight with every second, down to one; then one more each round."""
    sent: list[float] = []
    store = SlowDown(OUTAGE_SECONDS, sent, RESPONSE_SECONDS)
    operator = Operator.bare(Memory()).layer(store).layer(TimeoutLayer()).layer(ConcurrentLimitLayer())
    operator = operator.layer(RetryLayer())
    loop = asyncio.get_running_loop()
    lowered: list[object] = []

    async def read_on(until_seconds: float) -> None:
        while loop.time() < until_seconds:
            try:
                assert_same_bytes(await operator.read("k"), DATA)
            except (Throttled, BudgetExhausted):
                assert loop.time() < OUTAGE_SECONDS + 1

    async with operator:
        await operator.write("k", DATA)
        operator.runtime().events.subscribe(
            lambda event: lowered.append(event.facts["limit"]) if event.name == "limit.lowered" else None
        )
        # A round takes as long as a response.
        recovered = OUTAGE_SECONDS + READERS * RESPONSE_SECONDS + 1
        async with asyncio.TaskGroup() as group:
            for _ in range(READERS):
                group.create_task(read_on(OUTAGE_SECONDS - 1))
            await asyncio.sleep(OUTAGE_SECONDS - 2)
            assert operator.statistics["slots_withheld"] == READERS - 1
        async with asyncio.TaskGroup() as group:
            for _ in range(READERS):
                group.create_task(read_on(recovered + 5))
        assert operator.statistics["slots_withheld"] == 0
    assert lowered == [32, 16, 8, 4, 2, 1]
    at_once = list(zip(sent, store.in_flight, strict=True))
    for second in range(6):
        assert max(count for time, count in at_once if second + 0.5 < time < second + 1) <= READERS >> (second + 1)
    assert {count for time, count in at_once if 7 < time < OUTAGE_SECONDS} == {1}
    assert len([time for time in sent if 7 < time < OUTAGE_SECONDS]) <= (OUTAGE_SECONDS - 7) / RESPONSE_SECONDS
    assert max(count for time, count in at_once if time > recovered) == READERS == max(store.in_flight)


@pytest.mark.virtual
@checks("reliability:S04")
async def test_reads_that_meet_the_end_of_it_are_not_lost() -> None:
    """Pauses after throttling are of seconds, so that a read outlives a short one."""
    for seconds in (0.1, 0.5, 1.0):
        sent: list[float] = []
        loop = asyncio.get_running_loop()
        bare = Operator.bare(Memory()).layer(SlowDown(loop.time() + seconds, sent))
        operator = bare.layer(TimeoutLayer()).layer(ConcurrentLimitLayer()).layer(RetryLayer(attempts_max=20))
        async with operator:
            await operator.write("k", DATA)
            assert_same_bytes(await operator.read("k"), DATA)
            assert len(sent) <= 1 + 19
