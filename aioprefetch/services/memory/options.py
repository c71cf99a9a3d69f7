"""The options of the memory service: the store, and the root in it."""

from __future__ import annotations

from dataclasses import field

from aioprefetch.errors import IsADirectory
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.services.memory.store import Store
from aioprefetch.values import Capability, ServiceInfo

CAPABILITY = Capability(
    read=True,
    read_range=True,
    read_suffix=True,
    read_if_match=True,
    read_if_none_match=True,
    read_if_modified_since=True,
    read_if_unmodified_since=True,
    stat=True,
    stat_directory=True,
    list=True,
    list_recursive=True,
    list_ordered=True,
    list_start_after=True,
    write=True,
    write_stream=True,
    write_if_match=True,
    write_if_none_match=True,
    write_if_not_exists=True,
    write_content_type=True,
    write_user_metadata=True,
    copy=True,
    copy_if_match=True,
    copy_if_not_exists=True,
    delete=True,
    delete_paths_max=1 << 20,
    delete_if_match=True,
    create_dir=True,
)

_named: dict[str, Store] = {}


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """The fields of the recipe ``Memory``, which documents them."""

    name: str = ""
    root: str = ""
    _private: Store = field(default_factory=Store, repr=False, compare=False)

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
    """The stores of this process, and that of a recipe among them. A store is there with what is in it."""

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
