"""Both suites over obstore's stores: in memory, of local files, and S3 against moto; and over our own provider.

The service is one, so the quick profile has one of the stores below it.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore, S3Store

from aioprefetch.errors import NotFound
from aioprefetch.obspec import store
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.services.obspec import ObspecStore
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.accessor_suite import AccessorSuite
from aioprefetch.testing.reader_suite import ReaderSuite
from tests.conformance.test_s3_moto import OnMoto
from tests.profile import IS_FULL
from tests.stores.stacks import EachStack, MotoBucket, get_file, put_file

SECRET = "a-secret-key-for-tests"
LACKS = frozenset({"double_slash_keys"})


class OnObstoreMemory(EachStack):
    """Objects in obstore's memory, reached by its blocking calls."""

    lacks = LACKS

    @pytest.fixture
    def service(self) -> ObspecStore:
        """A store of its own for each test, with a root."""
        self.store = MemoryStore()
        return ObspecStore(self.store, prefix="some/root")

    async def put_directly(self, path: str, data: bytes) -> None:
        """By obstore."""
        self.store.put(f"some/root/{path}", data)

    async def get_directly(self, path: str) -> bytes | None:
        """By obstore."""
        try:
            return bytes(self.store.get(f"some/root/{path}").bytes())
        except FileNotFoundError:
            return None


class OnObstoreLocal(EachStack):
    """Files below a directory."""

    __test__ = IS_FULL
    lacks = LACKS

    @pytest.fixture
    def service(self, tmp_path: Path) -> ObspecStore:
        """A directory of its own for each test."""
        self.folder = tmp_path
        return ObspecStore(LocalStore(tmp_path))

    async def put_directly(self, path: str, data: bytes) -> None:
        """By the system."""
        put_file(self.folder, path, data)

    async def get_directly(self, path: str) -> bytes | None:
        """By the system."""
        return get_file(self.folder, path)


class OnOurProvider(EachStack):
    """There and back: an operator as a store of obspec, under another operator."""

    __test__ = IS_FULL
    lacks = LACKS

    @pytest.fixture
    async def service(self) -> AsyncIterator[ObspecStore]:
        """A store of its own for each test, with a root."""
        async with Operator(Memory()) as self.below:
            yield ObspecStore(store(self.below), prefix="some/root")

    async def put_directly(self, path: str, data: bytes) -> None:
        """By the operator below."""
        await self.below.write(f"some/root/{path}", data)

    async def get_directly(self, path: str) -> bytes | None:
        """By the operator below."""
        try:
            return await self.below.read(f"some/root/{path}")
        except NotFound:
            return None


@pytest.fixture(scope="session")
def obstore_bucket(s3_server: CountingS3Server, random_name: Callable[[], str]) -> MotoBucket:
    """One versioned bucket for the session; each test has a prefix of its own."""
    return MotoBucket(random_name(), versioned=True)


class OnObstoreS3(OnMoto):
    """Objects in moto's memory, by obstore's client of S3."""

    __test__ = IS_FULL
    lacks = LACKS | OnMoto.lacks | {"presigns_headers"}

    @pytest.fixture
    def service(
        self, s3_server: CountingS3Server, obstore_bucket: MotoBucket, random_name: Callable[[], str]
    ) -> ObspecStore:
        """A prefix of its own for each test."""
        self.s3_server, self.bucket, self.prefix = s3_server, obstore_bucket, random_name()
        return ObspecStore(
            S3Store(
                obstore_bucket.name,
                endpoint=s3_server.endpoint_url,
                region="us-east-1",
                access_key_id="an-access-key",
                secret_access_key=SECRET,
                client_options={"allow_http": True},
                retry_config={"max_retries": 0},
            ),
            prefix=self.prefix,
        )


class TestMemoryAccessor(OnObstoreMemory, AccessorSuite):
    """Operations."""


class TestMemoryReader(OnObstoreMemory, ReaderSuite):
    """Readers."""


class TestLocalAccessor(OnObstoreLocal, AccessorSuite):
    """Operations."""


class TestLocalReader(OnObstoreLocal, ReaderSuite):
    """Readers."""


class TestS3Accessor(OnObstoreS3, AccessorSuite):
    """Operations."""


class TestS3Reader(OnObstoreS3, ReaderSuite):
    """Readers."""


class TestProviderAccessor(OnOurProvider, AccessorSuite):
    """Operations."""


class TestProviderReader(OnOurProvider, ReaderSuite):
    """Readers."""
