"""The stores and stacks that the suites run over: how each is made, and how data is put there past the library."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import S3Backend, s3_backends

from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from tests.profile import chosen

STACKS = ("bare", "default", "cached")
# Every store runs under the default stack; the layers of the others are the same over any store, so memory has them.
STORE_STACKS = chosen(quick=("default",), full=STACKS)


@asynccontextmanager
async def stacked(service: Any, stack: str) -> AsyncIterator[Operator]:
    """An Operator over a service: bare, with the default layers, or with a cache in memory around these.

    The cache asks the store at each read whether its entry is fresh, so that it is held to the same responses.
    """
    if stack != "cached":
        async with Operator.bare(service) if stack == "bare" else Operator(service) as operator:
            yield operator
        return
    async with Operator(Memory()) as cache:
        layer = LruCacheLayer(cache=cache, capacity_bytes=64 << 20, revalidate_seconds=0)
        async with Operator(service).layer(layer) as operator:
            yield operator


def files_below(folder: Path, key: str) -> Path:
    """The path of a key, joined as text: `Path` would drop what it thinks is redundant."""
    return Path(f"{os.fspath(folder)}/{key}")


def put_file(folder: Path, key: str, data: bytes) -> None:
    """Write a file under a folder, which appears whole."""
    path = files_below(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name("being-written").write_bytes(data)
    path.with_name("being-written").replace(path)


def get_file(folder: Path, key: str) -> bytes | None:
    """The bytes of a file under a folder, None where there is none."""
    path = files_below(folder, key)
    return path.read_bytes() if path.is_file() else None


class MotoBucket:
    """A bucket in moto's memory, without HTTP."""

    def __init__(self, name: str, *, versioned: bool = False) -> None:
        self.name = name
        self._backend: S3Backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        self._backend.create_bucket(name, "us-east-1")
        if versioned:
            self._backend.put_bucket_versioning(name, "Enabled")

    def put(self, key: str, data: bytes) -> None:
        """Store an object."""
        self._backend.put_object(self.name, key, data)

    def get(self, key: str) -> bytes | None:
        """The bytes of an object, None where there is none."""
        found = self._backend.get_object(self.name, key)
        return None if found is None else found.value


# What a cache takes away: it keeps the old bytes of a pinned version, and its reads are not those of the reader.
CACHE_LACKS = frozenset({"replaces_at_once", "request_counts"})


def lacking(suite: "EachStack | type[EachStack]", stack: str) -> frozenset[str]:
    """The traits that are missing on one stack over a store."""
    return suite.lacks | CACHE_LACKS if stack == "cached" else suite.lacks


class EachStack:
    """Runs a suite over the stacks named in `stacks`; a subclass makes the service."""

    lacks: frozenset[str] = frozenset()

    stacks: tuple[str, ...] = STORE_STACKS

    @pytest.fixture
    async def operator(self, request: pytest.FixtureRequest, service: Any) -> AsyncIterator[Operator]:
        """The stack under test, over the fixture `service` of the subclass."""
        self.lacks = lacking(self, request.param)
        async with stacked(service, request.param) as operator:
            yield operator
