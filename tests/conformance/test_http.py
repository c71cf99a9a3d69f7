"""Both suites over the http service, which only reads."""

from collections.abc import AsyncIterator

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.services.http import Http
from aioprefetch.testing import FaultServer
from aioprefetch.testing.accessor_suite import AccessorSuite
from aioprefetch.testing.conformance.suite import RequestCounts
from aioprefetch.testing.reader_suite import ReaderSuite
from tests.stores.stacks import EachStack

BASE = "some/base/"


class OnHttp(EachStack):
    """Objects of a server on loopback."""

    @pytest.fixture
    async def service(self) -> AsyncIterator[Http]:
        """A well-behaved server for one test, with a base path."""
        async with FaultServer({}) as self.http_server:
            yield Http(f"{self.http_server.url}/{BASE}")

    async def put_directly(self, path: str, data: bytes) -> None:
        """Into the server's dict."""
        self.http_server.objects[BASE + path] = data

    async def get_directly(self, path: str) -> bytes | None:
        """Out of the server's dict."""
        return self.http_server.objects.get(BASE + path)

    def request_counts(self, operator: Operator) -> RequestCounts:
        """From the server's log."""
        return RequestCounts(get=self.http_server.count("GET"), head=self.http_server.count("HEAD"))


class TestAccessor(OnHttp, AccessorSuite):
    """Operations."""


class TestReader(OnHttp, ReaderSuite):
    """Readers."""
