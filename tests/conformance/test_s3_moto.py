"""Both suites over the s3 service, against moto in this process."""

from collections.abc import Callable

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.services.s3 import S3
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.accessor_suite import AccessorSuite
from aioprefetch.testing.conformance.suite import RequestCounts
from aioprefetch.testing.reader_suite import ReaderSuite
from tests.stores.stacks import EachStack, MotoBucket

SECRET = "a-secret-key-for-tests"


@pytest.fixture(scope="session")
def bucket(s3_server: CountingS3Server, random_name: Callable[[], str]) -> MotoBucket:
    """One versioned bucket for the session; each test has a prefix of its own."""
    return MotoBucket(random_name(), versioned=True)


class OnMoto(EachStack):
    """Objects in moto's memory, reached without HTTP."""

    lacks = frozenset(  # The bucket has versions, and a thread for each request.
        {"replaces_at_once", "enforces_delete_conditions", "atomic_conditions"}
    )
    secrets: tuple[str, ...] = (SECRET,)

    @pytest.fixture
    def service(self, s3_server: CountingS3Server, bucket: MotoBucket, random_name: Callable[[], str]) -> S3:
        """A prefix of its own for each test."""
        self.s3_server, self.bucket, self.prefix = s3_server, bucket, random_name()
        return S3(
            bucket=bucket.name,
            prefix=self.prefix,
            endpoint_url=s3_server.endpoint_url,
            region="us-east-1",
            access_key_id="an-access-key",
            secret_access_key=SECRET,
        )

    async def put_directly(self, path: str, data: bytes) -> None:
        """Into moto's memory."""
        self.bucket.put(f"{self.prefix}/{path}", data)

    async def get_directly(self, path: str) -> bytes | None:
        """Out of moto's memory."""
        return self.bucket.get(f"{self.prefix}/{path}")

    def request_counts(self, operator: Operator) -> RequestCounts:
        """From the server's log, of this test's objects."""
        own = [request for request in self.s3_server.requests if self.prefix in request.target]
        methods = [request.method for request in own]
        listings = sum("list-type" in request.query for request in own)
        return RequestCounts(get=methods.count("GET") - listings, head=methods.count("HEAD"), list=listings)


class TestAccessor(OnMoto, AccessorSuite):
    """Operations."""


class TestReader(OnMoto, ReaderSuite):
    """Readers."""
