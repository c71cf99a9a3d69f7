"""A service of another author: forty lines over a dictionary, listed in any order."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import aioprefetch as ap
from aioprefetch.accessor import check_range
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import (
    DeleteRequest,
    Entry,
    ListPage,
    ListRequest,
    Metadata,
    ReadReply,
    ReadRequest,
    Request,
    StatRequest,
    WriteRequest,
)

# The objects of each store by key, as bytes and ETag.
STORES: dict[str, dict[str, tuple[bytes, str]]] = {}
# What it can do besides.
READS = frozenset(("read", "read_range", "stat", "list"))
WRITES = frozenset(("write", "delete"))
OPTIONAL = frozenset(("read_suffix", "read_if_match", "read_if_none_match", "stat_directory", "list_recursive"))

_versions = itertools.count(1)
_names = itertools.count(1)


@dataclass(frozen=True)
class Foreign:
    """The recipe. ``order`` is that of listings, ``can`` names fields of its capability."""

    name: str
    can: frozenset[str] = READS | WRITES
    order: str = "sorted"
    page_entries: int = 3

    @classmethod
    def new(cls, can: frozenset[str] = READS | WRITES, order: str = "sorted") -> "Foreign":
        """A store of its own, which is empty."""
        store = cls(f"store-{next(_names)}", can, order)
        STORES[store.name] = {}
        return store

    @property
    def info(self) -> ap.ServiceInfo:
        """The name of the store."""
        return ap.ServiceInfo(scheme="foreign", name=self.name)

    @property
    def capability(self) -> ap.Capability:
        """What ``can`` says."""
        return ap.Capability(**dict.fromkeys(self.can, True))

    def build(self, runtime: Runtime) -> ap.Accessor:
        """The live accessor."""
        return ForeignAccessor(self, runtime)

    def put(self, key: str, data: bytes) -> str:
        """Store an object; returns its ETag."""
        etag = f"v{next(_versions)}"
        STORES[self.name][key] = (data, etag)
        return etag


class ForeignAccessor(ServiceAccessor):
    """The live store. It counts nothing."""

    def __init__(self, recipe: Foreign, runtime: Runtime) -> None:
        super().__init__(recipe.info, recipe.capability, runtime)
        self.recipe = recipe
        self.objects = STORES[recipe.name]

    def _get(self, request: Request) -> tuple[bytes, str]:
        try:
            return self.objects[request.path]
        except KeyError:
            raise ap.NotFound("no", operation=request.operation, path=request.path) from None

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        data, etag = self._get(request)
        head = check_range(request, total=len(data), etag=etag)
        sink.begin(head, path=request.path)
        sink.feed(data[head.start : head.end])
        return ReadReply(head=head, received=head.size)

    async def stat(self, request: StatRequest) -> Metadata:
        is_directory = request.path.endswith("/") and any(key.startswith(request.path) for key in self.objects)
        if is_directory and self.capability.stat_directory:
            return Metadata(path=request.path, kind="directory")
        data, etag = self._get(request)
        return Metadata(path=request.path, size=len(data), etag=etag)

    async def list_page(self, request: ListRequest) -> ListPage:
        keys = list(self.objects)
        if self.recipe.order != "inserted":
            keys.sort(reverse=self.recipe.order == "reversed")
        entries = tuple(self._entries(request, keys))
        at = int(request.page_token or 0)
        end = at + min(self.recipe.page_entries, request.page_entries_max or self.recipe.page_entries)
        return ListPage(entries=entries[at:end], next_token=str(end) if end < len(entries) else None)

    def _entries(self, request: ListRequest, keys: list[str]) -> Iterator[Entry]:
        folders: set[str] = set()
        for key in keys:
            if not key.startswith(request.path):
                continue
            name, slash, _ = key[len(request.path) :].partition("/")
            folder = f"{request.path}{name}/"
            if not slash or request.recursive:
                yield Entry(path=key, size=len(self.objects[key][0]))
            elif folder not in folders:
                folders.add(folder)
                yield Entry(path=folder, kind="directory")

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        etag = self.recipe.put(request.path, bytes(data))
        return Metadata(path=request.path, size=len(data), etag=etag)

    async def delete(self, request: DeleteRequest) -> None:
        self.objects.pop(request.path, None)
