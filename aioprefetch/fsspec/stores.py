"""The stores that the paths of a file system lead to: an operator for each, and the keys in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from aioprefetch.errors import Error, NotFound, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import shared_twin

# Operators that a file system keeps; of http each query is a store.
OPERATORS_MAX = 64

# From a path to the URL of its store, the key in it, and what stands before the keys of that store in paths.
Split = Callable[[str], tuple[str, str, str]]


class Place(NamedTuple):
    """A path resolved: a store, the key in it, and what stands before each key in the paths of that store."""

    operator: Operator
    key: str
    base: str
    version: str | None = None

    @property
    def directory(self) -> str:
        """The key as that of a directory."""
        return f"{self.key}/" if self.key else ""

    def error(self, kind: type[Error], what: str, operation: str, path: str) -> Error:
        """An error at a path of the file system, with the store that it names."""
        return kind(what, operation=operation, path=path).add_context(service=self.operator.info.location)

    def missing(self, operation: str, path: str, what: str = "there is no such object or directory") -> Error:
        """``NotFound`` at a path of the file system."""
        return self.error(NotFound, what, operation, path)

    @property
    def has_directories(self) -> bool:
        """Whether a directory is there without anything in it, and has to be made."""
        return self.operator.info.scheme == "file"


class Stores:
    """The operators of one file system: the one that it is over, or one for each store that a path has named.

    Those of a URL share their runtimes with all operators of the same options and principal in the process.
    """

    def __init__(
        self, only: Operator | None, scheme: str, split: Split, options: Mapping[str, Any], *, version_aware: bool
    ) -> None:
        self.only = only
        self._scheme = scheme
        self._split = split
        self._options = options
        self._version_aware = version_aware
        self._operators: OrderedDict[str, Operator] = OrderedDict()

    def place_of(self, path: str) -> Place:
        """The store and the key of a stripped path. Raises ``InvalidArgument`` for one that names no store."""
        store, key, base = ("", path, "") if self.only is not None else self._split(path)
        version = None
        if self._version_aware:
            key, _, version = key.partition("?versionId=")
        return Place(self.only or self._operator(store), key, base, version or None)

    def operators(self) -> list[Operator]:
        """The operators that are in use."""
        return [self.only] if self.only is not None else list(self._operators.values())

    async def close(self) -> None:
        """Release connections and memory on the running loop. The stores stay usable."""
        for operator in self.operators():
            await operator.aclose()

    @property
    def are_made(self) -> bool:
        """Whether a store has to be made: in memory it is there as soon as there is something in it."""
        return self._scheme != "memory"

    async def names(self) -> list[str]:
        """The stores that there are: the buckets of the account. ``Unsupported`` where they cannot be listed."""
        names: list[str] = await self._buckets(self._operator(f"{self._scheme}://any-bucket"), "list").names()
        return names

    async def create(self, operator: Operator) -> None:
        """Make the bucket of an operator. Raises ``AlreadyExists``, ``Unsupported`` where only others can make it."""
        await self._buckets(operator, "create_dir").create()

    async def delete(self, operator: Operator) -> None:
        """Delete the bucket of an operator. ``IsADirectory`` if there is something in it."""
        await self._buckets(operator, "delete").delete()

    async def remove(self, objects: Iterable[str], directories: Iterable[str] = ()) -> None:
        """Delete objects, by requests for many, and then directories, of which the root of a store stays.

        Where directories come and go with what is in them, only their markers are deleted, by the same requests.
        """
        keys: dict[Operator, list[str]] = {}
        for path in objects:
            place = self.place_of(path)
            if place.version is not None:
                await place.operator.delete(place.key, version=place.version)
                continue
            keys.setdefault(place.operator, []).append(place.directory if path.endswith("/") else place.key)
        places = [place for place in map(self.place_of, directories) if place.key]
        for place in places:
            if not place.has_directories:
                keys.setdefault(place.operator, []).append(place.directory)
        for operator, those in keys.items():
            await operator.delete(those)
        for place in places:
            if place.has_directories:
                await place.operator.delete(place.directory)

    def _buckets(self, operator: Operator, operation: str) -> Any:
        buckets = getattr(operator.service, "buckets", None)
        if buckets is None:
            raise Unsupported(
                f"{self._scheme or operator.info.scheme}:// neither lists, makes nor deletes buckets here: "
                "name one that exists",
                operation=operation,
            )
        return buckets(operator.runtime())

    def _operator(self, store: str) -> Operator:
        operator = self._operators.get(store)
        if operator is None:
            alone = Operator.from_uri(store, **self._options)
            # Another thread may have been faster.
            operator = self._operators.setdefault(store, shared_twin(alone) or alone)
            while len(self._operators) > OPERATORS_MAX:
                self._operators.popitem(last=False)
        return operator
