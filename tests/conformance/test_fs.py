"""Both suites over the fs service."""

from pathlib import Path

import pytest

from aioprefetch.services.fs import Fs
from aioprefetch.testing.accessor_suite import AccessorSuite
from aioprefetch.testing.reader_suite import ReaderSuite
from tests.stores.stacks import EachStack, get_file, put_file


class OnFs(EachStack):
    """Files under a temporary directory."""

    lacks = frozenset({"double_slash_keys"})

    @pytest.fixture
    def service(self, tmp_path: Path) -> Fs:
        """A directory of its own for each test."""
        self.root = tmp_path
        return Fs(str(tmp_path))

    async def put_directly(self, path: str, data: bytes) -> None:
        """As a file."""
        put_file(self.root, path, data)

    async def get_directly(self, path: str) -> bytes | None:
        """From the file."""
        return get_file(self.root, path)


class TestAccessor(OnFs, AccessorSuite):
    """Operations."""


class TestReader(OnFs, ReaderSuite):
    """Readers."""
