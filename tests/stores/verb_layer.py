"""A layer that has its verbs itself, so that a test of a store with a fault or a peculiarity writes one class."""

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Capability

# What ``around`` calls to go on, with a request.
Forward = Callable[[Any], Awaitable[Any]]
VERBS = ("stat", "read", "list_page", "write", "open_write", "begin_upload", "write_part", "copy_part")
MORE_VERBS = ("complete_upload", "abort_upload", "list_uploads", "copy", "rename", "delete", "create_dir", "identity")


class VerbLayer(Layer):
    """Gives each verb that a subclass defines the accessor below, and then what the verb was called with.

    An ``around(request, forward)`` gets all that have no method of their own. What ``adapt`` makes of the capability
    is that of the live layer too.
    """

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        kind: Any = type(self)
        live: Accessor = _live(kind)(inner, self)
        return live


class _Live(WrappedAccessor):
    def __init__(self, inner: Accessor, layer: VerbLayer) -> None:
        super().__init__(inner)
        self.layer: Any = layer

    @property
    def capability(self) -> Capability:
        adapted: Capability = self.layer.adapt(super().capability)
        return adapted


@cache
def _live(layer: Any) -> type[_Live]:
    """The class of the live layer. Its name is that of the layer, as errors show it."""
    methods = {name: _verb(name) for name in (*VERBS, *MORE_VERBS) if hasattr(layer, name)}
    if hasattr(layer, "around"):
        methods["around"] = lambda self, request, forward: self.layer.around(request, forward)
    return type(layer.__name__, (_Live,), methods)


def _verb(name: str) -> Any:
    def call(self: _Live, *arguments: Any) -> Any:
        return getattr(self.layer, name)(self.inner, *arguments)

    return call
