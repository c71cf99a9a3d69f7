"""The options of the memory service: the store, and the root in it."""

from __future__ import annotations

from dataclasses import field

from aioprefetch.errors import IsADirectory
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import TEXT, check, option
from aioprefetch.services.memory.store import Store
from aioprefetch.values import Capability, ServiceInfo

_CAN = (
    *("read", "read_range", "read_suffix", "read_if_match", "read_if_none_match"),
    *("read_if_modified_since", "read_if_unmodified_since", "stat", "stat_directory"),
    *("list", "list_recursive", "list_ordered", "list_start_after"),
    *("write", "write_stream", "write_if_match", "write_if_none_match", "write_if_not_exists"),
    *("write_content_type", "write_user_metadata"),
    *("copy", "copy_if_match", "copy_if_not_exists", "delete", "delete_if_match", "create_dir"),
)
CAPABILITY = Capability(**dict.fromkeys(_CAN, True), delete_paths_max=1 << 20)

_named: dict[str, Store] = {}


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """The fields of the recipe ``Memory``, which documents them."""

    name: str = option("", TEXT, given="uri")
    root: str = option("", TEXT, given="uri")
    _private: Store = field(default_factory=Store, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def info(self) -> ServiceInfo:
        name = self.name or f"private-{id(self._private):x}"
        return ServiceInfo(scheme="memory", name=name, root=self.root.strip("/"))

    @property
    def capability(self) -> Capability:
        return CAPABILITY

    @property
    def store(self) -> Store:
        """The objects, for tests that read or write them without an accessor."""
        return _named.setdefault(self.name, Store()) if self.name else self._private


class Buckets:
    """The stores of this process, and a recipe's store among them. A store is there with what is in it."""

    def __init__(self, options: MemoryOptions) -> None:
        self._options = options

    async def names(self) -> list[str]:
        """The named stores that hold something, in order."""
        return sorted(name for name, store in _named.items() if store.objects)

    async def create(self) -> None:
        """Do nothing: the store is there as soon as there is something in it."""

    async def delete(self) -> None:
        """Do nothing for an empty store. ``IsADirectory`` if there is something in it."""
        if self._options.store.objects:
            raise IsADirectory("the store is not empty", operation="delete", path=self._options.name)
