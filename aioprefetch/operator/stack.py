"""The layers of an Operator: the default stack, and where another layer goes. Stacks are listed innermost first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aioprefetch.accessor.protocols import Accessor, Layer, Service, WrappedAccessor
from aioprefetch.accessor.response_check import check_due
from aioprefetch.accessor.sink import CheckingSink, Sink, check_delivered
from aioprefetch.errors import ConfigInvalid, ProtocolError
from aioprefetch.layers import CompleteLayer, ConcurrentLimitLayer, ErrorContextLayer, RetryLayer, TimeoutLayer
from aioprefetch.options import checked_options
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadReply, ReadRequest

Stack = tuple[Layer, ...]


def default_stack(service: Service, **retry: Any) -> Stack:
    """The default stack over a service.

    Timeout bounds one attempt and so lies within Retry; neither a pause between attempts nor a queue may hold a slot,
    so ConcurrentLimit lies between the two. Raises ``ConfigInvalid`` for an invalid option of ``retry``.
    """
    layers = (ErrorContextLayer(), CompleteLayer(), _timeout_over(service), ConcurrentLimitLayer())
    return (*layers, RetryLayer(**checked_options(RetryLayer, retry)))


def _timeout_over(service: Service) -> TimeoutLayer:
    """The Timeout of the default stack, which never ends a wait that the options of the service allow."""
    layer = TimeoutLayer()
    connect_seconds, read_seconds = (
        float(getattr(service, name, 0.0)) for name in ("connect_timeout_seconds", "read_timeout_seconds")
    )
    return TimeoutLayer(
        timeout_seconds=max(layer.timeout_seconds or 0.0, connect_seconds + read_seconds),
        stall_seconds=max(layer.stall_seconds or 0.0, connect_seconds, read_seconds),
    )


def bare_stack() -> Stack:
    """The stack of ``Operator.bare``: errors name operation and path, and reads are complete."""
    return (ErrorContextLayer(), CompleteLayer())


def with_layer(stack: Stack, layer: Layer, *, inside: type[Layer] | None = None) -> Stack:
    """The stack with ``layer`` in place of the layer of its type, otherwise outermost; or directly inside another.

    ``ConfigInvalid`` for a layer that is not a layer, and for an ``inside`` that is not in the stack.
    """
    if isinstance(layer, type) or not callable(getattr(layer, "wrap", None)):
        raise ConfigInvalid(f"a layer is needed, such as RetryLayer(), not {layer!r}", operation="configure")
    kinds = [type(member) for member in stack]
    if inside is None:
        place = kinds.index(type(layer)) if type(layer) in kinds else len(stack)
        return (*stack[:place], layer, *stack[place + 1 :])
    others = [member for member in stack if type(member) is not type(layer)]
    places = {type(member): place for place, member in enumerate(others)}
    if not isinstance(inside, type) or inside not in places:
        name = inside.__name__ if isinstance(inside, type) else repr(inside)
        present = ", ".join(kind.__name__ for kind in reversed(places))
        raise ConfigInvalid(
            f"inside must be the type of another layer of the stack, not {name}; from the outermost on there are"
            f" {present}",
            operation="configure",
        )
    return (*others[: places[inside]], layer, *others[places[inside] :])


def check_order(stack: Sequence[Layer]) -> None:
    """Timeout must lie within Retry: outside it would end the pauses and attempts that Retry owns."""
    kinds = [type(layer) for layer in stack]
    if TimeoutLayer in kinds and RetryLayer in kinds and kinds.index(TimeoutLayer) > kinds.index(RetryLayer):
        raise ConfigInvalid(
            "TimeoutLayer must lie within RetryLayer: add Timeout before Retry, or replace both of the default stack",
            operation="configure",
        )


class _OuterSide(WrappedAccessor):
    """The outer side of a layer that may do anything to a read. What it delivers wrongly is an error that names it."""

    rename = WrappedAccessor.rename  # Neither bytes nor names are changed here.

    def __init__(self, inner: Accessor, layer: Layer) -> None:
        super().__init__(inner)
        self._layer = type(layer).__name__

    def __getattr__(self, name: str) -> Any:  # What else the layer has, and says of itself.
        return getattr(self.inner, name)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        # At once, since bytes are used as they arrive. A further attempt continues the first one: the sink looks.
        checking = CheckingSink(sink, lambda head: None if sink.head else check_due(request, head))
        try:
            reply = await self.inner.read(request, checking)
            check_delivered(request, sink, reply)
        except ProtocolError as error:
            if "service" not in error.context:  # Otherwise it comes from further in.
                error.add_context(path=request.path, layer=self._layer)
            raise
        return reply


def live_stack(runtime: Runtime, service: Service, layers: Sequence[Layer]) -> Accessor:
    """The one stack of a service and layers in a runtime, for all copies of an operator."""

    def build() -> tuple[Accessor, object]:
        accessor = runtime.shared(("service", id(service)), lambda: (service.build(runtime), service))[0]
        plain, is_complete = {type(layer) for layer in default_stack(service)}, False
        for layer in layers:
            accessor = layer.wrap(accessor, runtime)
            if is_complete and type(layer) not in plain:
                accessor = _OuterSide(accessor, layer)
            is_complete |= isinstance(layer, CompleteLayer)
        return accessor, layers  # Kept with what it is made of, so that no other object gets one of the ids.

    return runtime.shared(("stack", id(service), *map(id, layers)), build)[0]
