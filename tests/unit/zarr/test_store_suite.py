"""zarr's own tests of stores, over memory, files and S3."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.testing.store import StoreTests

import aioprefetch as ap
from aioprefetch.testing import CountingS3Server
from aioprefetch.zarr import Store
from tests.stores.s3_options import options_of
from tests.stores.stacks import MotoBucket, get_file, put_file

pytestmark = pytest.mark.full

PREFIX = "below/the root"


class StoreSuite(StoreTests[Store, cpu.Buffer]):
    """What every store of zarr has to do. ``put`` and ``get`` of objects go past the store."""

    store_cls = Store
    buffer_cls = cpu.Buffer
    # These skip for a store without methods that block, such as this one.
    test_get_sync = test_get_sync_missing = test_set_sync = None  # type: ignore[assignment]
    test_delete_sync = test_delete_sync_missing = None  # type: ignore[assignment]

    store_operator: ap.Operator

    @pytest.fixture
    def store_kwargs(self, operator: ap.Operator) -> dict[str, Any]:
        self.store_operator = operator
        return {"operator": operator, "prefix": PREFIX}

    async def put_directly(self, path: str, data: bytes) -> None:
        """Store an object past the store."""
        raise NotImplementedError

    async def get_directly(self, path: str) -> bytes | None:
        """The bytes of an object past the store."""
        raise NotImplementedError

    async def set(self, store: Store, key: str, value: Buffer) -> None:
        await self.put_directly(f"{PREFIX}/{key}", value.to_bytes())

    async def get(self, store: Store, key: str) -> Buffer:
        data = await self.get_directly(f"{PREFIX}/{key}")
        assert data is not None
        return cpu.Buffer.from_bytes(data)

    def test_store_repr(self, store: Store) -> None:
        assert repr(store).startswith("<Store ")
        assert repr(store).endswith(f"{PREFIX}/>")

    def test_store_supports_writes(self, store: Store) -> None:
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store: Store) -> None:
        assert store.supports_listing

    @pytest.fixture(autouse=True)
    async def closed_operator(self, operator: ap.Operator) -> Any:
        yield
        await operator.aclose()


class TestOverMemory(StoreSuite):
    @pytest.fixture
    def operator(self, random_name: Callable[[], str]) -> ap.Operator:
        return ap.Operator.from_uri(f"memory://{random_name()}")

    async def put_directly(self, path: str, data: bytes) -> None:
        await self.store_operator.write(path, data)

    async def get_directly(self, path: str) -> bytes | None:
        return await self.store_operator.read(path)


class TestOverFiles(StoreSuite):
    @pytest.fixture
    def operator(self, tmp_path: Path) -> ap.Operator:
        self.folder = tmp_path
        return ap.Operator.from_uri(f"file://{tmp_path}")

    async def put_directly(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(put_file, self.folder, path, data)

    async def get_directly(self, path: str) -> bytes | None:
        return await asyncio.to_thread(get_file, self.folder, path)


class TestOverS3(StoreSuite):
    @pytest.fixture
    def operator(self, s3_server: CountingS3Server, random_name: Callable[[], str]) -> ap.Operator:
        self.bucket = MotoBucket(random_name())
        return ap.Operator.from_uri(
            f"s3://{self.bucket.name}",
            endpoint_url=s3_server.endpoint_url,
            region=s3_server.region,
            access_key_id=s3_server.access_key_id,
            secret_access_key="a-secret-key-for-tests",
            allow_http=True,
        )

    async def put_directly(self, path: str, data: bytes) -> None:
        self.bucket.put(path, data)

    async def get_directly(self, path: str) -> bytes | None:
        return self.bucket.get(path)

    async def test_a_missing_bucket_is_no_missing_value(
        self, operator: ap.Operator, s3_server: CountingS3Server
    ) -> None:
        """Else zarr would read an array of fill values."""
        ranges = (None, SuffixByteRequest(3), RangeByteRequest(0, 3), RangeByteRequest(1, 3), OffsetByteRequest(1))
        prototype = default_buffer_prototype()
        missing = ap.Operator.from_uri(
            "s3://there-is-none",
            **options_of(s3_server),
        )
        async with operator, missing:
            for wanted in ranges:
                assert await Store(operator).get("k", prototype, wanted) is None
                assert await Store(operator).get_partial_values(prototype, [("k", wanted)]) == [None]
                with pytest.raises(ap.NotFound, match="no bucket 'there-is-none'"):
                    await Store(missing).get("k", prototype, wanted)
                with pytest.raises(ap.NotFound, match="no bucket 'there-is-none'"):
                    await Store(missing).get_partial_values(prototype, [("k", wanted)])

    async def test_no_secret_is_pickled(self, store: Store) -> None:
        import pickle

        assert b"a-secret-key-for-tests" not in pickle.dumps(store)
        assert "a-secret-key-for-tests" not in repr(store)
