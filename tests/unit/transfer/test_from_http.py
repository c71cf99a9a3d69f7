"""Objects of servers of HTTP into stores: with and without ranges, versions and lengths."""

import asyncio

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import Unavailable
from aioprefetch.layers import RetryLayer
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import PartRequest, UploadedPart
from tests.profile import chosen
from tests.stores.gated_reader import MIB
from tests.stores.layer_stack import was_cancelled
from tests.stores.part_store import PartStore

DATA = bytes(range(251)) * (9 * MIB // 251)
NO_VERSION = {"ETag": None, "Last-Modified": None}
NO_RANGES = Fault(ignore_range=True)
# Ranges are there, but nothing proves that two responses are of one version.
UNPROVEN = Fault(headers=NO_VERSION)


class Copies:
    """Copies the object of a server into a store that takes parts."""

    def __init__(self, server: FaultServer) -> None:
        self.parts = PartStore(part_bytes=MIB)
        source = Operator(ap.services.Http(server.url, skip_bytes_max=2 * MIB), block_bytes=MIB)
        self.source = source.layer(RetryLayer(base_seconds=1e-6))
        self.target = Operator(ap.services.Memory()).layer(self.parts, inside=ap.layers.ErrorContextLayer)
        self.reported = 0

    async def run(self) -> bytes:
        """Copy, and return what is at the target."""
        await ap.copy((self.source, "k"), (self.target, "k"), on_progress=self._count)
        return await self.target.read("k")

    def _count(self, progress: ap.CopyProgress) -> None:
        self.reported += progress.step_bytes

    async def aclose(self) -> None:
        assert self.parts.uploads == {}
        for op in (self.source, self.target):
            assert op.runtime().budget.used_bytes == op.runtime().budget.waiting == 0
            await op.aclose()


@pytest.mark.parametrize(
    ("fault", "requests"),
    [
        pytest.param(UNPROVEN, ["HEAD", "GET"], id="ranges of no version"),
        pytest.param(Fault(etag='W/"weak"'), ["HEAD", "GET"], id="a weak version"),
        pytest.param(Fault(ignore_range=True, headers=NO_VERSION), ["HEAD", "GET"], id="no ranges of no version"),
        pytest.param(Fault(ignore_range=True, chunked=True), None, id="no length"),
        pytest.param(NO_RANGES, None, id="no ranges of a version"),
    ],
)
async def test_any_server_is_copied_from(fault: Fault, requests: list[str] | None) -> None:
    async with FaultServer({"k": DATA}, [Rule(fault=fault, times=None)]) as server:
        copies = Copies(server)
        assert await copies.run() == DATA
        assert copies.reported == len(DATA)
        if requests is not None:
            server.assert_requests(*requests)
        await copies.aclose()


@pytest.mark.parametrize("later", [DATA, DATA[::-1], DATA[: 5 * MIB], b""], ids=["same", "other", "shorter", "empty"])
async def test_a_response_that_breaks_off_begins_again(later: bytes) -> None:
    """Nothing proves that the next one is of the same version: nothing of the first one is used."""
    async with FaultServer({"k": DATA}, [Rule(fault=UNPROVEN, method="HEAD")]) as server:

        def is_read(request: object) -> bool:
            server.objects["k"] = later  # The response that breaks off has been taken from the old object.
            return True

        broken = Fault(headers=NO_VERSION, body=DATA, close_after_bytes=4 * MIB)
        server.add(Rule(fault=broken, method="GET", matches=is_read), Rule(fault=UNPROVEN, times=None))
        copies = Copies(server)
        assert await copies.run() == later
        assert copies.reported == len(later)
        await copies.aclose()


@checks("reliability:W10")
async def test_a_server_that_always_breaks_off_leaves_nothing() -> None:
    broken = Fault(ignore_range=True, headers=NO_VERSION, close_after_bytes=4 * MIB)
    rules = [Rule(fault=broken, method="GET", times=None), Rule(fault=UNPROVEN)]
    async with FaultServer({"k": DATA}, rules) as server:
        copies = Copies(server)
        with pytest.raises(Unavailable):
            await copies.run()
        assert not await copies.target.exists("k")
        await copies.aclose()


async def test_a_response_waits_for_a_target_that_is_slower() -> None:
    """However long the object is, a few pieces of it are in memory."""
    async with FaultServer({"k": DATA}, [Rule(fault=UNPROVEN, times=None)]) as server:
        copies = Copies(server)
        held = asyncio.Event()

        class SlowPart(ap.WrappedAccessor):
            async def write_part(self, request: PartRequest, data: bytes | bytearray | memoryview) -> UploadedPart:
                await held.wait()
                return await self.inner.write_part(request, data)

        class Slow(ap.Layer):
            def wrap(self, inner: ap.Accessor, runtime: Runtime) -> ap.Accessor:
                return SlowPart(inner)

        copies.target = (
            Operator(ap.services.Memory(), memory_bytes=4 * MIB, block_bytes=MIB)
            .layer(copies.parts, inside=ap.layers.ErrorContextLayer)
            .layer(Slow())
        )
        copying = asyncio.create_task(copies.run())
        await server.wait_for_requests(2)
        await server.wait_until_quiet()
        assert copies.source.statistics["stream_read_total_bytes"] < len(DATA)
        held.set()
        assert await copying == DATA
        await copies.aclose()


@checks("reliability:W39")
async def test_cancelled_anywhere_it_is_there_or_not() -> None:
    for suspension in [*range(1, 12), *range(12, 400, chosen(quick=17, full=3))]:
        async with FaultServer({"k": DATA}, [Rule(fault=UNPROVEN, times=None)]) as server:
            copies = Copies(server)
            cancelled = await was_cancelled(copies.run(), suspension)
            assert cancelled or await copies.target.read("k") == DATA
            if await copies.target.exists("k"):
                assert await copies.target.read("k") == DATA
            await copies.aclose()
            if not cancelled:
                return
    raise AssertionError("it was never carried out to its end")
