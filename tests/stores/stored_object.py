"""An object on a counting S3 server that libraries open by its URL, and what they have asked for of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aioprefetch as ap
from aioprefetch.ranges import Range
from aioprefetch.testing import Fault, FaultServer, Rule
from tests.stores.s3_options import options_of

KEY = "bucket/key"

# As of an object store in the same region. From a server that responds within a millisecond small requests are exact,
# and whether this one does would depend on the machine.
FIRST_BYTE_SECONDS = 0.01


class StoredObject:
    """The only object of a server. It has one GET of a range for each entry of `ranges`, in the order of arrival."""

    def __init__(self, server: FaultServer) -> None:
        self.server = server
        self.size = len(server.objects[KEY])
        self.url = f"s3://{KEY}"
        self.store: dict[str, Any] = options_of(server)
        self._forgotten = 0

    def open(self, **options: Any) -> Any:
        """The object as a file, by its URL. Of no type: some libraries claim to need an ``IO[bytes]``."""
        return ap.sync.open(self.url, **self.store, **options)

    @property
    def ranges(self) -> list[Range]:
        """What was asked for since `forget`. Anything but a GET of a range of the object fails the test."""
        found = []
        for request in self.server.requests[self._forgotten :]:
            assert (request.method, request.key) == ("GET", KEY)
            assert request.range is not None
            first, last = request.range.removeprefix("bytes=").split("-")
            start = int(first) if first else max(0, self.size - int(last))
            found.append((start, min(int(last) + 1, self.size) if first else self.size))
        return found

    @property
    def bytes_sent(self) -> int:
        """The bytes of the bodies since `forget`, as far as they were sent."""
        sent = self.server.body_bytes_sent
        return sum(sent[request.index] for request in self.server.requests[self._forgotten :])

    def forget(self) -> None:
        """Count from here: `ranges` and `bytes_sent` are empty again."""
        self._forgotten = len(self.server.requests)


@contextmanager
def stored(data: bytes) -> Iterator[StoredObject]:
    """`data` on a server of its own, which runs on the loop thread of the process."""
    server = FaultServer({KEY: data}, [Rule(fault=Fault(delay_head_seconds=FIRST_BYTE_SECONDS), times=None)])
    ap.sync.run(server.__aenter__())
    try:
        yield StoredObject(server)
    finally:
        ap.sync.run(server.__aexit__(None, None, None))
