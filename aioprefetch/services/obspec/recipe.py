"""The recipe of a service over a store that speaks obspec's protocols."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import ConfigInvalid, InvalidPath
from aioprefetch.runtime.runtime import Runtime, fork_generation
from aioprefetch.services.keys import checked_key
from aioprefetch.services.obspec.accessor import ObspecAccessor
from aioprefetch.services.obspec.identity import place_of, principal_of
from aioprefetch.services.obspec.traits import capability_of, has
from aioprefetch.values import Capability, ServiceInfo


@dataclass(frozen=True, slots=True, eq=False, init=False)
class ObspecStore:
    """A store with obspec's async methods, obstore's for one, or what lies under a prefix of it.

    Raises ``ConfigInvalid`` for what is no such store. Does no I/O.

    Parameters
    ----------
    store
        The store, with at least ``get_async`` or ``put_async``; or a function without parameters that makes one. A
        store cannot be pickled, since its own pickle holds its keys; a function that can be imported is pickled by its
        name, and called once for each event loop of each process. A store that it makes is closed with the operator
        if it has a method ``aclose``.
    name
        What the store is called in messages and, with ``principal``, in the keys of caches. Default: the bucket,
        container or address of obstore's stores; something random for others, so that nothing is shared by mistake.
    prefix
        The root: every path is ``prefix/path``. Slashes at its ends do not matter.
    principal
        Who reads: two that may not see each other's bytes need two. Default: a digest of the configuration of
        obstore's stores, keys included; something random where a store, or its provider of credentials, does not tell.
    capability
        What the store can do, where its methods promise too much or too little.
    part_bytes
        The size of the parts of a streaming write; up to six are held in memory.
    """

    store: Any = field(repr=False)
    name: str
    prefix: str
    principal: str
    part_bytes: int
    _capability: Capability | None = field(repr=False)
    # Stands for what is not known of the store; a copy in another process has the same.
    _random: str = field(repr=False)
    _made: list[tuple[int, Any]] = field(repr=False)

    def __init__(
        self,
        store: Any,
        *,
        name: str = "",
        prefix: str = "",
        principal: str = "",
        capability: Capability | None = None,
        part_bytes: int = 8 << 20,
    ) -> None:
        keep = object.__setattr__
        keep(self, "store", store)
        for option, text in (("name", name), ("principal", principal)):
            if not isinstance(text, str):
                raise _invalid(f"{option} must be text, not {text!r}")
            keep(self, option, text)
        keep(self, "prefix", _checked_prefix(prefix))
        if capability is not None and not isinstance(capability, Capability):
            raise _invalid(f"capability must be an aioprefetch.Capability, not {capability!r}")
        keep(self, "_capability", capability)
        if type(part_bytes) is not int or not 5 << 20 <= part_bytes <= 1 << 30:
            raise _invalid(f"part_bytes must be an integer between {5 << 20} and {1 << 30}, not {part_bytes!r}")
        keep(self, "part_bytes", part_bytes)
        keep(self, "_random", secrets.token_hex(8))
        keep(self, "_made", [])
        if not _is_store(store) and not callable(store):
            raise _no_store(store)

    @property
    def _is_factory(self) -> bool:
        return not _is_store(self.store)

    def _known(self) -> Any:
        """A store to be asked what it is: the given one, or one made in this process."""
        if not self._is_factory:
            return self.store
        if not self._made or self._made[0][0] != fork_generation():
            self._made[:] = [(fork_generation(), self._make())]
        return self._made[0][1]

    def _make(self) -> Any:
        try:
            made = self.store()
        except Exception as error:
            raise _invalid(f"the function that makes the store raised {type(error).__name__}") from error
        if not _is_store(made):
            raise _no_store(made)
        return made

    @property
    def info(self) -> ServiceInfo:
        store = self._known()
        name, endpoint, region = place_of(store)
        return ServiceInfo(
            scheme="obspec",
            name=self.name or name or f"private-{self._random}",
            root=self.prefix,
            endpoint=endpoint,
            region=region,
            principal=self.principal or principal_of(store) or f"private-{self._random}",
        )

    @property
    def capability(self) -> Capability:
        return self._capability or capability_of(self._known())

    def build(self, runtime: Runtime) -> Accessor:
        if not self._is_factory:
            return ObspecAccessor(self, self.store, runtime)
        return ObspecAccessor(self, runtime.shared(("obspec", self), lambda: self._make_for(runtime)), runtime)

    def _make_for(self, runtime: Runtime) -> Any:
        store = self._make()
        if has(store, "aclose"):
            runtime.supervisor.on_close(store.aclose)
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._is_factory:
            raise ConfigInvalid(
                "an operator over a store cannot be pickled: the store's pickle would hold its keys. Give a function "
                "that makes the store: ObspecStore(make_store)",
                operation="pickle",
            )
        _check_importable(self.store)
        return _restored, (
            self.store,
            self.name,
            self.prefix,
            self.principal,
            self.part_bytes,
            self._capability,
            self._random,
        )


def _restored(
    store: Callable[[], Any],
    name: str,
    prefix: str,
    principal: str,
    part_bytes: int,
    capability: Capability | None,
    random: str,
) -> ObspecStore:
    service = ObspecStore(
        store, name=name, prefix=prefix, principal=principal, part_bytes=part_bytes, capability=capability
    )
    object.__setattr__(service, "_random", random)
    return service


def _is_store(store: Any) -> bool:
    return not isinstance(store, type) and (has(store, "get_async") or has(store, "put_async"))


def _check_importable(factory: Any) -> None:
    """A function is pickled by its name, which holds no secret; what has none, or holds arguments, may hold some."""
    found: Any = sys.modules.get(getattr(factory, "__module__", None) or "")
    for part in (getattr(factory, "__qualname__", None) or "<none>").split("."):
        found = getattr(found, part, None)
    if found is not factory:
        raise ConfigInvalid(
            f"{factory!r} cannot be pickled by name: give a function of a module, and let it look up its keys itself "
            "(in the environment, for one)",
            operation="pickle",
        )


def _checked_prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        raise _invalid(f"prefix must be text, not {prefix!r}")
    text = prefix.strip("/")
    if "//" in text:
        raise _invalid(f"prefix={prefix!r} has an empty segment")
    try:
        return checked_key(text, operation="configure")
    except InvalidPath as error:
        raise _invalid(f"prefix={prefix!r} cannot be used: {error.message}") from None


def _no_store(found: object) -> ConfigInvalid:
    return _invalid(
        f"a {type(found).__name__} is no store of obspec: it has neither get_async nor put_async. Give a store, or a "
        "function that makes one"
    )


def _invalid(message: str) -> ConfigInvalid:
    return ConfigInvalid(message, operation="configure")
