"""The options of the memory service: the store, and the root in it."""

from __future__ import annotations

from dataclasses import field

from aioprefetch.lean_dataclass import dataclass
from aioprefetch.services.memory.store import Store
from aioprefetch.values import Capability, ServiceInfo

CAPABILITY = Capability(
    read=True,
    read_range=True,
    read_suffix=True,
    read_if_match=True,
    read_if_none_match=True,
    stat=True,
    stat_directory=True,
    list=True,
    list_recursive=True,
    list_start_after=True,
    write=True,
    write_stream=True,
    write_if_match=True,
    write_if_not_exists=True,
    write_content_type=True,
    write_user_metadata=True,
    copy=True,
    delete=True,
    delete_paths_max=1 << 20,
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
