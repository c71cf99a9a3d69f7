"""A service of one's own over a dictionary, as the guide to services has it, that lists in any order."""

from __future__ import annotations

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


@dataclass(eq=False)
class DictStore:
    """The recipe. It lists in the order of the dictionary, ``recursive`` or one level at a time."""

    objects: dict[str, bytes] = field(default_factory=dict)
    name: str = "name"
    recursive: bool = False
    ordered: bool = False
    requests: list[str] = field(default_factory=list)

    @property
    def info(self) -> ServiceInfo:
        """Its identity."""
        return ServiceInfo(scheme="dict", name=self.name)

    @property
    def capability(self) -> Capability:
        """What it supports."""
        return Capability(
            read=True,
            read_range=True,
            stat=True,
            list=True,
            list_recursive=self.recursive,
            list_ordered=self.ordered,
            write=True,
            delete=True,
        )

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

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        """Some bytes of an object."""
        data = self._find(request)
        head = check_range(request, total=len(data), etag=f"{hash(data):x}")
        sink.begin(head, path=request.path)
        sink.feed(memoryview(data)[head.start : head.end])
        return ReadReply(head=head, received=head.size)

    async def stat(self, request: StatRequest) -> Metadata:
        """The size of an object."""
        data = self._find(request)
        return Metadata(path=request.path, size=len(data), etag=f"{hash(data):x}")

    async def list_page(self, request: ListRequest) -> ListPage:
        """A page of keys, in the order of the dictionary."""
        self._store.requests.append(f"list {request.path}")
        found: dict[str, int | None] = {}
        for key, data in self._store.objects.items():
            if key.startswith(request.path):
                head, slash, _ = key[len(request.path) :].partition("/")
                if request.recursive:
                    head, slash = key[len(request.path) :], ""
                found[request.path + head + slash] = None if slash else len(data)
        entries = [
            Entry(path=path, kind="directory") if size is None else Entry(path=path, size=size)
            for path, size in found.items()
        ]
        at = int(request.page_token or 0)
        after = at + PAGE_ENTRIES
        return ListPage(entries=tuple(entries[at:after]), next_token=str(after) if after < len(entries) else None)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        """An object is there whole."""
        self._store.objects[request.path] = bytes(data)
        return Metadata(path=request.path, size=len(data))

    async def delete(self, request: DeleteRequest) -> None:
        """An object is gone."""
        for path in request.paths:
            self._store.objects.pop(path, None)
