"""Libraries that speak obspec read through an operator: obspec-utils, and VirtualiZarr with xarray."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
from obspec_utils.readers import BlockStoreReader, BufferedStoreReader, EagerStoreReader
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import S3Store
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser

import aioprefetch as ap
from aioprefetch.obspec import OperatorStore
from aioprefetch.testing import CountingS3Server, content
from tests.stores.s3_options import options_of
from tests.stores.stacks import MotoBucket

VALUES = np.arange(64 * 256, dtype="f8").reshape(64, 256)


def hdf5() -> bytes:
    """A file of a variable in 16 chunks."""
    packed = io.BytesIO()
    with h5py.File(packed, "w") as file:
        data = file.create_dataset("temperature", data=VALUES, chunks=(16, 64))
        data.attrs["unit"] = "K"
    return packed.getvalue()


@pytest.fixture
def bucket(random_name: Callable[[], str]) -> str:
    """A bucket that has `file.h5` and `bytes`."""
    made = MotoBucket(random_name())
    made.put("file.h5", hdf5())
    made.put("bytes", content(3 << 20))
    return made.name


@pytest.fixture
def operator(s3_server: CountingS3Server, bucket: str) -> ap.Operator:
    return ap.Operator.from_uri(
        f"s3://{bucket}",
        **options_of(s3_server),
        allow_http=True,
    )


@pytest.mark.parametrize("reader_class", [BlockStoreReader, BufferedStoreReader, EagerStoreReader])
def test_the_readers_of_obspec_utils(operator: ap.Operator, reader_class: type[BlockStoreReader]) -> None:
    """Each by other methods: ranges, one range at a time, the whole object."""
    with ap.obspec.store(operator) as store:
        reader = reader_class(store, "bytes")
        reader.seek(1 << 20)
        assert reader.read(100) == content(3 << 20)[1 << 20 :][:100]
        with h5py.File(reader_class(store, "file.h5"), "r") as file:
            assert (file["temperature"][10:20] == VALUES[10:20]).all()


def test_virtualizarr_over_our_store(operator: ap.Operator, tmp_path: Path) -> None:
    """A file of HDF5 becomes chunks of zarr, and xarray reads them."""
    with ap.obspec.store(operator) as store:
        registry: ObjectStoreRegistry[OperatorStore] = ObjectStoreRegistry({"s3://bucket": store})
        with open_virtual_dataset("s3://bucket/file.h5", registry=registry, parser=HDFParser()) as virtual:
            assert virtual["temperature"].shape == VALUES.shape
            assert virtual["temperature"].attrs["unit"] == "K"
        manifest = HDFParser()("s3://bucket/file.h5", registry=registry)
        with xarray.open_zarr(manifest, consolidated=False, zarr_format=3, chunks=None) as found:
            assert (found["temperature"].values == VALUES).all()


def read_blocks(store: Any) -> None:
    """Read a file of HDF5 by blocks."""
    with h5py.File(BlockStoreReader(store, "file.h5"), "r") as file:
        assert (file["temperature"][:] == VALUES).all()


def read_buffered(store: Any) -> None:
    """Read a file of HDF5 by one range at a time."""
    with h5py.File(BufferedStoreReader(store, "file.h5"), "r") as file:
        assert (file["temperature"][:] == VALUES).all()


def read_eagerly(store: Any) -> None:
    """Read a whole object."""
    assert len(EagerStoreReader(store, "bytes").read()) == 3 << 20


def open_virtually(store: Any) -> None:
    """Find the chunks of a file of HDF5, and read them."""
    manifest = HDFParser()("s3://bucket/file.h5", registry=ObjectStoreRegistry({"s3://bucket": store}))
    with xarray.open_zarr(manifest, consolidated=False, zarr_format=3, chunks=None) as found:
        assert (found["temperature"].values == VALUES).all()


def get_small(store: Any) -> None:
    """Get a small object, some ranges of a large one, and metadata."""
    assert len(memoryview(store.get("file.h5").buffer())) > 0
    store.get_ranges("bytes", starts=[0, 5000, 2 << 20], lengths=[10, 10, 10])
    store.get_range("bytes", start=7, length=9)
    store.get("bytes", options={"range": {"suffix": 100}}).buffer()
    store.head("bytes")


def write_and_list(store: Any) -> None:
    """Put, list, copy, rename, and delete objects."""
    for number in range(5):
        store.put(f"new/{number}", b"bytes", mode="create" if number else "overwrite")
    assert len([entry for page in store.list("new") for entry in page]) == 5
    assert len(store.list_with_delimiter("new")["objects"]) == 5
    store.copy("new/0", "new/copy")
    store.rename("new/1", "new/renamed")
    store.delete([f"new/{name}" for name in (0, 2, 3, 4, "copy", "renamed")])


JOBS = (read_blocks, read_buffered, read_eagerly, open_virtually, get_small, write_and_list)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_no_job_costs_more_requests_than_over_obstore(
    job: Callable[[Any], None], operator: ap.Operator, bucket: str, s3_server: CountingS3Server
) -> None:
    """Of any kind; what is longer than the first chunk of a body is read in parallel parts."""
    theirs = S3Store(
        bucket,
        endpoint=s3_server.endpoint_url,
        region=s3_server.region,
        access_key_id=s3_server.access_key_id,
        secret_access_key=s3_server.secret_access_key,
        client_options={"allow_http": True},
    )
    requests: list[list[str]] = []
    with ap.obspec.store(operator) as ours:
        for store in (ours, theirs):
            s3_server.reset()
            job(store)
            requests.append([request.method for request in s3_server.requests])
    looks = 2 if job is write_and_list else 0  # Ours looks at an object before and after it is copied to be renamed.
    assert len(requests[0]) <= len(requests[1]) + looks, requests
