"""Both suites over the memory service."""

import pytest

from aioprefetch.services.memory import Memory
from aioprefetch.testing.accessor_suite import AccessorSuite
from aioprefetch.testing.reader_suite import ReaderSuite
from aioprefetch.values import WriteRequest
from tests.profile import few
from tests.stores.stacks import STACKS, EachStack


class OnMemory(EachStack):
    """Objects in a private store, reached by its dict; under every stack."""

    # The bare one is the default one without its layers, over the same store.
    stacks = tuple(few(STACKS, lambda _, stack: stack != "bare"))

    @pytest.fixture
    def service(self) -> Memory:
        """A store of its own for each test, with a root."""
        self.store = Memory(root="some/root")
        return self.store

    async def put_directly(self, path: str, data: bytes) -> None:
        """Into the dict."""
        self.store.store.put(WriteRequest(path=f"some/root/{path}"), data)

    async def get_directly(self, path: str) -> bytes | None:
        """Out of the dict."""
        found = self.store.store.objects.get(f"some/root/{path}")
        return None if found is None else found.data


class TestAccessor(OnMemory, AccessorSuite):
    """Operations."""


class TestReader(OnMemory, ReaderSuite):
    """Readers."""
