"""The recipe of the service over a store of obspec."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import ConfigInvalid
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.obspec.accessor import ObspecAccessor
from aioprefetch.services.obspec.options import CloudFactory, ObspecOptions, has


@dataclass(frozen=True, slots=True, eq=False, init=False)
class ObspecStore(ObspecOptions):
    """A store with obspec's async methods, such as one of obstore, or a prefix of it.

    Raises ``ConfigInvalid`` for any other object. Does no I/O.

    Parameters
    ----------
    store
        The store, with at least ``get_async`` or ``put_async``; or a function without parameters that makes one. A
        store cannot be pickled, since its own pickle holds its keys; a function that can be imported is pickled by its
        name, and called once for each event loop of each process. A store that it makes is closed with the operator
        if it has a method ``aclose``.
    name
        The name of the store in messages and, with ``principal``, in the keys of caches. Default: the bucket, container
        or address of obstore's stores; something random for others, so that nothing is shared by mistake.
    prefix
        The root: every path is ``prefix/path``. Slashes at its ends do not matter.
    principal
        The identity of the reader: readers that may not share bytes need different ones. Default: a digest of the
        configuration of obstore's stores, keys included; something random if a store, or its provider of credentials,
        does not identify it.
    capability
        The capability of the store, if its methods suggest too much or too little.
    part_bytes
        The size of the parts of a streaming write; up to six are held in memory.
    """

    def build(self, runtime: Runtime) -> Accessor:
        if not self.is_factory:
            return ObspecAccessor(self, self.store, runtime)
        return ObspecAccessor(self, runtime.shared(("obspec", self), lambda: self._make_for(runtime)), runtime)

    def _make_for(self, runtime: Runtime) -> Any:
        store = self.make()
        if has(store, "aclose"):
            runtime.supervisor.on_close(store.aclose)
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_factory:
            raise ConfigInvalid(
                "an operator over a store cannot be pickled: the store's pickle would hold its keys. Give a function "
                "that makes the store: ObspecStore(make_store)",
                operation="pickle",
            )
        if not isinstance(self.store, CloudFactory):
            _check_importable(self.store)
        options = {name: getattr(self, name) for name in ("name", "prefix", "principal", "part_bytes")}
        return _restored, (self.store, self._random, {**options, "capability": self._capability})


def _restored(store: Callable[[], Any], random: str, options: Mapping[str, Any]) -> ObspecStore:
    service = ObspecStore(store, **options)
    object.__setattr__(service, "_random", random)
    return service


def _check_importable(factory: Any) -> None:
    """A function is pickled by its name, which holds no secret.

    An object without a name, or with arguments, may hold one.
    """
    importable: Any = sys.modules.get(getattr(factory, "__module__", None) or "")
    for part in (getattr(factory, "__qualname__", None) or "<none>").split("."):
        importable = getattr(importable, part, None)
    if importable is not factory:
        raise ConfigInvalid(
            f"{factory!r} cannot be pickled by name: give a function of a module, and let it look up its keys itself "
            "(in the environment, for one)",
            operation="pickle",
        )
