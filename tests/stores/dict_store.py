"""A service of another author: forty lines over a dictionary, that lists in any order. It counts nothing itself."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from aioprefetch import Operator
from aioprefetch.accessor import check_range
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import NotFound
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import (
    Capability,
    DeleteRequest,
    Entry,
    ListPage,
    ListRequest,
    Metadata,
    ReadReply,
    ReadRequest,
    ServiceInfo,
    StatRequest,
    WriteRequest,
)

PAGE_ENTRIES = 3
NEEDED = frozenset(("read", "read_range", "stat", "list", "write", "delete"))
# What it can do besides.
OPTIONAL = frozenset(("read_suffix", "read_if_match", "read_if_none_match", "stat_directory"))

_names = itertools.count(1)


def etag_of(data: bytes) -> str:
    """By the bytes."""
    return f"{hash(data) & 0xFFFF_FFFF_FFFF:x}"


@dataclass(eq=False)
class DictStore:
    """The recipe. It lists in the order of the dictionary, ``recursive`` or one level at a time.

    ``can`` names fields of its capability. Without ``tells_etag`` a stat has the size alone.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"store-{next(_names)}")
    recursive: bool = False
    ordered: bool = False
    can: frozenset[str] = NEEDED
    tells_etag: bool = True
    requests: list[str] = field(default_factory=list)

    @property
    def info(self) -> ServiceInfo:
        """Its identity."""
        return ServiceInfo(scheme="dict", name=self.name)

    @property
    def capability(self) -> Capability:
        """What it supports."""
        able = dict.fromkeys(self.can, True)
        return Capability(list_recursive=self.recursive, list_ordered=self.ordered, **able)

    def build(self, runtime: Runtime) -> Accessor:
        """The live service."""
        return DictAccessor(self, runtime)

    def operator(self) -> Operator:
        """An operator of it."""
        return Operator(self)


class DictAccessor(ServiceAccessor):
    """The live service."""

    def __init__(self, store: DictStore, runtime: Runtime) -> None:
        super().__init__(store.info, store.capability, runtime)
        self._store = store

    def _find(self, request: ReadRequest | StatRequest) -> bytes:
        self._store.requests.append(f"{request.operation} {request.path}")
        try:
            return self._store.objects[request.path]
        except KeyError:
            raise NotFound("there is no such object", operation=request.operation, path=request.path) from None

    def _metadata(self, path: str, data: bytes) -> Metadata:
        return Metadata(path=path, size=len(data), etag=etag_of(data) if self._store.tells_etag else None)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        """Some bytes of an object."""
        data = self._find(request)
        head = check_range(request, total=len(data), etag=etag_of(data))
        sink.begin(head, path=request.path)
        sink.feed(memoryview(data)[head.start : head.end])
        return ReadReply(head=head, received=head.size)

    async def stat(self, request: StatRequest) -> Metadata:
        """The size of an object, or that there is a directory."""
        is_directory = request.path.endswith("/") and any(key.startswith(request.path) for key in self._store.objects)
        if is_directory and self.capability.stat_directory:
            return Metadata(path=request.path, kind="directory")
        return self._metadata(request.path, self._find(request))

    async def list_page(self, request: ListRequest) -> ListPage:
        """A page of keys, in the order of the dictionary."""
        self._store.requests.append(f"list {request.path}")
        entries = tuple(self._entries(request))
        at = int(request.page_token or 0)
        end = at + min(PAGE_ENTRIES, request.page_entries_max or PAGE_ENTRIES)
        return ListPage(entries=entries[at:end], next_token=str(end) if end < len(entries) else None)

    def _entries(self, request: ListRequest) -> Iterator[Entry]:
        directories: set[str] = set()
        for key, data in self._store.objects.items():
            if not key.startswith(request.path):
                continue
            name, slash, _ = key[len(request.path) :].partition("/")
            directory = f"{request.path}{name}/"
            if not slash or request.recursive:
                yield Entry(path=key, size=len(data))
            elif directory not in directories:
                directories.add(directory)
                yield Entry(path=directory, kind="directory")

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        """An object is there whole."""
        self._store.objects[request.path] = bytes(data)
        return self._metadata(request.path, bytes(data))

    async def delete(self, request: DeleteRequest) -> None:
        """An object is gone."""
        for path in request.paths:
            self._store.objects.pop(path, None)
