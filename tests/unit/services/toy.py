"""A service outside of the package, in as few lines as the guide shows: texts by name, to be read only."""

from dataclasses import dataclass
from typing import Any, ClassVar

import aioprefetch as ap
from aioprefetch.accessor import check_range
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.credentials import Secret
from aioprefetch.runtime.runtime import Runtime

TEXTS = {"rose": b"a rose is a rose is a rose"}


@dataclass(frozen=True, kw_only=True)
class Toy:
    """The recipe."""

    name: str
    shout: bool = False
    times: int = 1
    password: str | Secret | None = None
    tags: tuple[str, ...] = ()

    schemes: ClassVar[tuple[str, ...]] = ("toy", "toys")
    uri_options: ClassVar[tuple[str, ...]] = ("shout", "times", "password", "tags")

    @classmethod
    def from_uri(cls, uri: str, **options: Any) -> "Toy":
        """The recipe for ``toy://name``."""
        return cls(name=uri.partition("://")[2], **options)

    @property
    def info(self) -> ap.ServiceInfo:
        """The store."""
        return ap.ServiceInfo(scheme="toy", name=self.name)

    @property
    def capability(self) -> ap.Capability:
        """Reads alone."""
        return ap.Capability(read=True, read_range=True, read_suffix=True, read_if_match=True)

    def build(self, runtime: Runtime) -> ap.Accessor:
        """The live service."""
        return ToyAccessor(self, runtime)


class ToyAccessor(ServiceAccessor):
    """The live service."""

    def __init__(self, toy: Toy, runtime: Runtime) -> None:
        super().__init__(toy.info, toy.capability, runtime)
        self._toy = toy

    async def read(self, request: ap.ReadRequest, sink: Sink) -> ap.ReadReply:
        if request.path not in TEXTS:
            raise ap.NotFound("there is no such text", operation="read", path=request.path)
        text = TEXTS[request.path] * self._toy.times
        data = text.upper() if self._toy.shout else text
        head = check_range(request, total=len(data), etag=f"{hash(data):x}")
        sink.begin(head, path=request.path)
        sink.feed(data[head.start : head.end])
        return ap.ReadReply(head=head, received=head.size)
