"""The recipe of the memory service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import ConfigInvalid
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import given
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory.accessor import MemoryAccessor
from aioprefetch.services.memory.options import Buckets, MemoryOptions

if TYPE_CHECKING:
    from aioprefetch.services.uri_options import MemoryUriOptions


@dataclass(frozen=True, slots=True)
class Memory(MemoryOptions):
    """The recipe: ``Memory("name")`` for the process-wide store of that name, ``Memory()`` for a private store.

    A private store belongs to its recipe and cannot be pickled (``ConfigInvalid``): its objects would be left behind.

    Parameters
    ----------
    name
        A store of this process, which all recipes with this name share; ``""``: a private one.
    root
        A prefix before all keys.
    """

    schemes: ClassVar[tuple[str, ...]] = ("memory",)

    @classmethod
    def from_uri(cls, uri: str, **options: Unpack[MemoryUriOptions]) -> Memory:
        """The recipe for ``memory://name/root``."""
        name, _, root = uri.partition("://")[2].partition("/")
        return cls(name, root, **given(options))

    def buckets(self, runtime: Runtime) -> Buckets:
        """The stores of this process, as the buckets of an account."""
        return Buckets(self)

    def build(self, runtime: Runtime) -> Accessor:
        return MemoryAccessor(self, runtime)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.name:
            raise ConfigInvalid(
                "a private memory store cannot be pickled; give it a name: memory://name", operation="pickle"
            )
        return type(self), (self.name, self.root)
