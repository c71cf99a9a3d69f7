"""What an Operator is made of, and how it comes to life: service, layers and options, one runtime for each loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from aioprefetch.accessor.protocols import Accessor, Layer, Service
from aioprefetch.errors import ConfigInvalid
from aioprefetch.layers import CompleteLayer, ConcurrentLimitLayer, ErrorContextLayer, RetryLayer, TimeoutLayer
from aioprefetch.operator.from_uri import check_bytes
from aioprefetch.runtime.options import DiskCache, RuntimeOptions
from aioprefetch.runtime.runtime import Runtime, RuntimeFamily
from aioprefetch.runtime.statistics import Statistics
from aioprefetch.values import Capability, ServiceInfo


def default_layers() -> tuple[Layer, ...]:
    """The default stack, innermost first.

    Timeout bounds one attempt and so lies within Retry; a slot is held by neither a pause between attempts nor a
    queue, so ConcurrentLimit lies between the two.
    """
    return (ErrorContextLayer(), CompleteLayer(), TimeoutLayer(), ConcurrentLimitLayer(), RetryLayer())


class OperatorRecipe:
    """The recipe and its live stacks; ``Operator`` adds the verbs."""

    def __init__(
        self,
        service: Service,
        *,
        memory_bytes: int = 256 << 20,
        block_bytes: int = 8 << 20,
        prefetch_blocks: int = 8,
        concurrency: int = 64,
        disk_cache: DiskCache | str | os.PathLike[str] | None = None,
        budget_wait_seconds: float = 60.0,
    ) -> None:
        check_bytes(memory_bytes=memory_bytes, block_bytes=block_bytes)
        options = RuntimeOptions(
            memory_bytes=memory_bytes,
            block_bytes=block_bytes,
            prefetch_blocks=prefetch_blocks,
            concurrency=concurrency,
            disk_cache=DiskCache.of(disk_cache),
            budget_wait_seconds=budget_wait_seconds,
        )
        self._assemble(service, default_layers(), RuntimeFamily(options))

    def _assemble(self, service: Service, layers: tuple[Layer, ...], family: RuntimeFamily) -> None:
        _check_order(layers)
        if not hasattr(service, "build"):
            raise ConfigInvalid(
                f"a service is needed, not {type(service).__name__}; for a URI there is Operator.from_uri",
                operation="configure",
            )
        self._service = service
        self._layers = layers
        self._family = family
        self._live: tuple[Accessor, Runtime] | None = None

    @classmethod
    def _of(cls, service: Service, layers: tuple[Layer, ...], family: RuntimeFamily) -> Self:
        operator = cls.__new__(cls)
        operator._assemble(service, layers, family)
        return operator

    @classmethod
    def bare(cls, service: Service) -> Self:
        """An Operator with ErrorContext and Complete alone: no retry, no limits, no time-outs."""
        return cls._of(service, (ErrorContextLayer(), CompleteLayer()), RuntimeFamily(RuntimeOptions()))

    def layer(self, layer: Layer) -> Self:
        """An Operator with ``layer`` in place of the one of the same type, otherwise around all others."""
        if isinstance(layer, type) or not callable(getattr(layer, "wrap", None)):
            raise ConfigInvalid(f"a layer is needed, such as RetryLayer(), not {layer!r}", operation="configure")
        same = [number for number, one in enumerate(self._layers) if type(one) is type(layer)]
        layers = list(self._layers)
        if same:
            layers[same[0]] = layer
        else:
            layers.append(layer)
        return self._of(self._service, tuple(layers), self._family)

    # --- what it is ---------------------------------------------------------------------------------------------

    @property
    def info(self) -> ServiceInfo:
        """Which store this is; no secret in it."""
        return self._service.info

    @property
    def capability(self) -> Capability:
        """What this stack can do."""
        capability = self._service.capability
        for layer in self._layers:
            capability = layer.adapt(capability)
        return capability

    @property
    def options(self) -> RuntimeOptions:
        """The limits it runs under."""
        return self._family.options

    @property
    def statistics(self) -> Statistics:
        """Counts since the first use in this process, on all loops, of all Operators of the family; and the gauges."""
        return self._family.statistics()

    def __repr__(self) -> str:
        layers = ", ".join(type(layer).__name__ for layer in reversed(self._layers))
        return f"<Operator {self.info.url} [{layers}]>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._of, (self._service, self._layers, self._family)

    # --- what is live -------------------------------------------------------------------------------------------

    def runtime(self) -> Runtime:
        """The runtime of the running loop."""
        return self._connect()[1]

    def accessor(self) -> Accessor:
        """The live stack on the running loop."""
        return self._connect()[0]

    def _connect(self) -> tuple[Accessor, Runtime]:
        live = self._live
        if live is not None and live[1].is_usable():
            return live
        runtime = self._family.current()
        accessor: Accessor = runtime.shared(("service", id(self._service)), lambda: self._service.build(runtime))
        for layer in self._layers:
            accessor = layer.wrap(accessor, runtime)
        live = self._live = (accessor, runtime)
        return live

    async def aclose(self) -> None:
        """Close connections and end background work on the running loop; open readers fail with ``Closed``.

        Needs no response from the network. The next use starts anew.
        """
        self._live = None
        runtime = self._family.existing()
        if runtime is not None:
            await runtime.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _check_order(layers: Sequence[Layer]) -> None:
    """Timeout must lie within Retry: outside it would end the pauses and attempts that Retry owns."""
    kinds = [type(layer) for layer in layers]
    if TimeoutLayer in kinds and RetryLayer in kinds and kinds.index(TimeoutLayer) > kinds.index(RetryLayer):
        raise ConfigInvalid(
            "TimeoutLayer must lie within RetryLayer: add Timeout before Retry, or replace both of the default stack",
            operation="configure",
        )
