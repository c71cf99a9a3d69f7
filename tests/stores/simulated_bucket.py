"""A bucket in memory whose clock, order, page size and failures a test decides."""

import itertools
import zlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Capability, Entry, ListPage, ListRequest, ServiceInfo

CAPABILITY = Capability(list=True, list_recursive=True, list_start_after=True)


def hurried() -> Callable[[], float]:
    """A clock on which every pause is over when it is looked at again."""
    return itertools.count(0.0, 1000.0).__next__


@dataclass(frozen=True, slots=True)
class SimulatedObject:
    """One version of an object."""

    etag: str
    size: int = 1
    modified_ms: int | None = 0


@dataclass(eq=False)
class SimulatedBucket:
    """A service. ``on_request`` is called before each listing request; what it raises is the response."""

    page_entries: int = 3
    ordered: bool = True
    on_request: Callable[[ListRequest], None] | None = None
    name: str = "bucket"
    objects: dict[str, SimulatedObject] = field(default_factory=dict)
    requests: list[ListRequest] = field(default_factory=list)
    versions: int = 0
    _sorted: list[str] | None = None

    @property
    def info(self) -> ServiceInfo:
        """The service information of the store."""
        return ServiceInfo(scheme="s3", name=self.name)

    @property
    def capability(self) -> Capability:
        """It lists, and does nothing else."""
        return CAPABILITY

    def build(self, runtime: Runtime) -> Accessor:
        """The live accessor."""
        return SimulatedAccessor(self, runtime)

    def operator(self) -> Operator:
        """Without layers that would try again."""
        return Operator.bare(self)

    def put(self, key: str, *, modified_ms: int | None = 0, size: int = 1) -> SimulatedObject:
        """A new version under a key."""
        self.versions += 1
        found = self.objects[key] = SimulatedObject(f"v{self.versions}", size, modified_ms)
        self._sorted = None
        return found

    def restore(self, key: str, version: SimulatedObject) -> None:
        """Put back a version that was deleted."""
        self.objects[key] = version
        self._sorted = None

    def delete(self, key: str) -> None:
        """Remove a key, if it is there."""
        self.objects.pop(key, None)
        self._sorted = None

    def keys(self) -> list[str]:
        """All keys in the order in which they are listed."""
        if self._sorted is None:
            self._sorted = sorted(self.objects, key=self.rank)
        return self._sorted

    def rank(self, key: str) -> tuple[int, str]:
        """The keys of the order."""
        return (0, key) if self.ordered else (zlib.crc32(key.encode()), key)


class SimulatedAccessor(ServiceAccessor):
    """Lists."""

    def __init__(self, bucket: SimulatedBucket, runtime: Runtime) -> None:
        super().__init__(bucket.info, bucket.capability, runtime)
        self._bucket = bucket

    async def list_page(self, request: ListRequest) -> ListPage:
        bucket = self._bucket
        bucket.requests.append(request)
        if bucket.on_request is not None:
            bucket.on_request(request)
        keys = bucket.keys()
        after = request.page_token if request.page_token is not None else request.start_after
        start = 0 if after is None else bisect_right(keys, bucket.rank(after), key=bucket.rank)
        found = [key for key in keys[start:] if key.startswith(request.path)]
        page = found[: bucket.page_entries]
        return ListPage(
            entries=tuple(self._entry(key) for key in page),
            next_token=page[-1] if len(found) > len(page) else None,
        )

    def _entry(self, key: str) -> Entry:
        if key.endswith("/"):
            return Entry(path=key, kind="directory")
        found = self._bucket.objects[key]
        modified = None if found.modified_ms is None else datetime.fromtimestamp(found.modified_ms / 1000, UTC)
        return Entry(path=key, size=found.size, etag=found.etag, last_modified=modified)
