"""WrappedAccessor: a layer says only what it changes; the rest is forwarded, every operation through one hook."""

import inspect
from contextlib import suppress
from typing import Any

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import Unsupported
from aioprefetch.layers import WrappedAccessor
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory import Memory
from aioprefetch.values import ReadRequest, Request, WriteRequest
from tests.profile import each_of
from tests.unit.layers.test_error_context import NAMES, OPERATIONS


class Seen(WrappedAccessor):
    """Writes down what passes."""

    def __init__(self, inner: Accessor) -> None:
        super().__init__(inner)
        self.seen: list[Request] = []

    async def around(self, request: Any, forward: Any) -> Any:
        self.seen.append(request)
        return await forward(request)


def build() -> Seen:
    """The layer over a store with "k"."""
    memory = Memory()
    memory.store.put(WriteRequest(path="k"), b"0123456789")
    return Seen(memory.build(Runtime(RuntimeOptions())))


@each_of("name", [name for name in OPERATIONS if name != "presign"])
async def test_every_operation_goes_through_around(name: str) -> None:
    layer = build()
    with suppress(Unsupported):  # Memory takes no parts.
        await OPERATIONS[name](layer)
    assert [request.operation for request in layer.seen] == [NAMES.get(name, name)]


async def test_around_may_change_the_request() -> None:
    class First(Seen):
        async def around(self, request: Any, forward: Any) -> Any:
            return await forward(ReadRequest(path="k", offset=0, size=3))

    layer = First(build().inner)
    sink = CollectSink()
    await layer.read(ReadRequest(path="other"), sink)
    assert sink.to_bytes() == b"012"


async def test_nothing_of_the_protocol_is_missing() -> None:
    names = {name for name, _ in inspect.getmembers(Accessor) if not name.startswith("_")}
    own = {name for name in vars(WrappedAccessor) if not name.startswith("_")}
    assert names <= own
    assert isinstance(build(), Accessor)
    assert build().info.scheme == "memory"
    assert build().capability.read
