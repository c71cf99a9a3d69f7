"""A store of any number of objects that exist by arithmetic alone: a page costs what it holds, and nothing is kept.

For scale: ten million keys, listed by our own lister. ``without`` and ``versions`` make some of them differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.errors import InvalidArgument
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Capability, Entry, ListPage, ListRequest, ServiceInfo

CAPABILITY = Capability(list=True, list_recursive=True, list_start_after=True)
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
FOLDER_KEYS = 10_000


@dataclass
class ArithmeticStore:
    """A service of ``count`` objects of ``size`` bytes each. ``count`` may grow; ``requests`` counts pages."""

    count: int
    size: int = 1 << 20
    page_entries: int = 1000
    without: set[int] = field(default_factory=set)
    versions: Mapping[int, int] = field(default_factory=dict)
    requests: int = 0

    @property
    def info(self) -> ServiceInfo:
        """The service information of the store."""
        return ServiceInfo(scheme="s3", name="arithmetic")

    @property
    def capability(self) -> Capability:
        """It lists, and does nothing else."""
        return CAPABILITY

    def build(self, runtime: Runtime) -> Accessor:
        """The live accessor."""
        return ArithmeticAccessor(self, runtime)

    @staticmethod
    def key(number: int) -> str:
        """The key of an object, 30 characters; in the order of numbers."""
        return f"dt={number // FOLDER_KEYS:06}/part-{number:010}.json"

    @staticmethod
    def number(key: str) -> int:
        """The number of an object."""
        return int(key[-15:-5])

    def first_above(self, key: str | None) -> int:
        """The number of the first object whose key is above ``key``, by bisection: any text will do."""
        low, high = 0, self.count
        while key is not None and low < high:
            middle = (low + high) // 2
            if self.key(middle) <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def entry(self, number: int) -> Entry:
        """The object of that number."""
        return Entry(
            path=self.key(number),
            size=self.size,
            etag=f"{number:032x}{self.versions.get(number, '')}",
            last_modified=BEGINNING + timedelta(seconds=number % 86_400),
        )


class ArithmeticAccessor(ServiceAccessor):
    """Lists."""

    def __init__(self, store: ArithmeticStore, runtime: Runtime) -> None:
        super().__init__(store.info, store.capability, runtime)
        self._store = store

    async def list_page(self, request: ListRequest) -> ListPage:
        store = self._store
        if request.path or not request.recursive:
            raise InvalidArgument("an arithmetic store is listed from its root, recursively", operation="list")
        store.requests += 1
        number = store.first_above(request.page_token or request.start_after)
        end = min(number + store.page_entries, store.count)
        entries = tuple(store.entry(one) for one in range(number, end) if one not in store.without)
        return ListPage(entries=entries, next_token=store.key(end - 1) if end < store.count else None)
