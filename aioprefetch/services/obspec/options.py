"""The options of the service over a store of obspec, and their checks."""

from __future__ import annotations

import secrets
from dataclasses import field
from typing import Any

from aioprefetch.errors import ConfigInvalid, Error, InvalidPath
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import ByteCount, byte_count
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.services.keys import checked_key
from aioprefetch.services.obspec.traits import capability_of, has, place_of, principal_of
from aioprefetch.values import Capability, ServiceInfo


class CloudFactory:
    """A function that makes a store, and says of which ``scheme``. It pickles by its fields, without secrets."""

    __slots__ = ()
    scheme: str


@dataclass(frozen=True, slots=True, eq=False, init=False)
class ObspecOptions:
    """The fields of the recipe ``ObspecStore``, which documents them. Raises ``ConfigInvalid`` for other objects."""

    store: Any = field(repr=False)
    name: str
    prefix: str
    principal: str
    part_bytes: int
    _capability: Capability | None = field(repr=False)
    # Identifies a store without a known identity. A copy in another process has the same value.
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
        part_bytes: ByteCount = 8 << 20,
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
        size = byte_count(part_bytes, "part_bytes", operation="configure")
        if type(size) is not int or not 5 << 20 <= size <= 1 << 30:
            raise _invalid(f"part_bytes must be an integer between {5 << 20} and {1 << 30}, not {part_bytes!r}")
        keep(self, "part_bytes", size)
        keep(self, "_random", secrets.token_hex(8))
        keep(self, "_made", [])
        if not _is_store(store) and not callable(store):
            raise _no_store(store)

    @property
    def is_factory(self) -> bool:
        """Whether ``store`` is a function that makes a store."""
        return not _is_store(self.store)

    def _any_store(self) -> Any:
        """The store to inspect: the given one, or one made in this process."""
        if not self.is_factory:
            return self.store
        if not self._made or self._made[0][0] != fork_generation():
            self._made[:] = [(fork_generation(), self.make())]
        return self._made[0][1]

    def make(self) -> Any:
        """A store made by the factory. Raises ``ConfigInvalid`` if that fails."""
        try:
            store = self.store()
        except Error:
            raise
        except Exception as error:
            raise _invalid(f"the function that makes the store raised {type(error).__name__}") from error
        if not _is_store(store):
            raise _no_store(store)
        return store

    @property
    def info(self) -> ServiceInfo:
        store = self._any_store()
        name, endpoint, region = place_of(store)
        return ServiceInfo(
            scheme=self.store.scheme if isinstance(self.store, CloudFactory) else "obspec",
            name=self.name or name or f"private-{self._random}",
            root=self.prefix,
            endpoint=endpoint,
            region=region,
            principal=self.principal or principal_of(store) or f"private-{self._random}",
        )

    @property
    def capability(self) -> Capability:
        return self._capability or capability_of(self._any_store())


def _is_store(store: Any) -> bool:
    return not isinstance(store, type) and (has(store, "get_async") or has(store, "put_async"))


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


def _no_store(value: object) -> ConfigInvalid:
    return _invalid(
        f"a {type(value).__name__} is not a store of obspec: it has neither get_async nor put_async. Give a store, or "
        "a function that makes one"
    )


def _invalid(message: str) -> ConfigInvalid:
    return ConfigInvalid(message, operation="configure")
