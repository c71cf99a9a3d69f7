"""Libraries that speak obspec read through an operator: obspec-utils, and VirtualiZarr with xarray."""

import io
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from obspec_utils.readers import BlockStoreReader, BufferedStoreReader, EagerStoreReader
from obspec_utils.registry import ObjectStoreRegistry
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser

import aioprefetch as ap
from aioprefetch.obspec import OperatorStore
from aioprefetch.testing import CountingS3Server, content
from tests.benches.stacks import MotoBucket

VALUES = np.arange(64 * 256, dtype="f8").reshape(64, 256)


def hdf5() -> bytes:
    """A file of a variable in 16 chunks."""
    packed = io.BytesIO()
    with h5py.File(packed, "w") as file:
        data = file.create_dataset("temperature", data=VALUES, chunks=(16, 64))
        data.attrs["unit"] = "K"
    return packed.getvalue()


@pytest.fixture
def operator(s3_server: CountingS3Server, random_name: Callable[[], str]) -> ap.Operator:
    """Over a bucket of its own, which has `file.h5` and `bytes`."""
    bucket = MotoBucket(random_name())
    bucket.put("file.h5", hdf5())
    bucket.put("bytes", content(3 << 20))
    return ap.Operator.from_uri(
        f"s3://{bucket.name}",
        endpoint_url=s3_server.endpoint_url,
        region=s3_server.region,
        access_key_id=s3_server.access_key_id,
        secret_access_key=s3_server.secret_access_key,
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
