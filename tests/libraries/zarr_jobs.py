"""What programs do with zarr, run over one store after the other on one counting S3 server."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import xarray
import zarr
from obstore.store import S3Store
from zarr.abc.store import Store
from zarr.storage import ObjectStore

import aioprefetch as ap
from aioprefetch.testing import CountingS3Server
from tests.stores.s3_options import options_of

SIDE = 512
VALUES = np.arange(SIDE * SIDE, dtype="<i4").reshape(SIDE, SIDE)
NOISE = np.random.default_rng(11).integers(0, 1 << 31, (SIDE, SIDE), dtype="<i4")
DAYS = 40
# A map of 256 KiB for each of 64 hours.
SERIES = np.stack([NOISE[:256, :256] + hour for hour in range(64)])

# Makes a store for a bucket of a server; a context that closes it.
MakeStore = Callable[[CountingS3Server, str], Any]


@contextmanager
def over_aioprefetch(server: CountingS3Server, bucket: str) -> Iterator[Store]:
    """Ours."""
    operator = ap.Operator.from_uri(
        f"s3://{bucket}",
        **options_of(server),
        allow_http=True,
    )
    with ap.zarr.Store(operator, "data") as store:
        yield store


@contextmanager
def over_obstore(server: CountingS3Server, bucket: str) -> Iterator[Store]:
    """zarr's store over obstore."""
    with ObjectStore(
        S3Store(
            bucket,
            prefix="data",
            endpoint=server.endpoint_url,
            region=server.region,
            access_key_id=server.access_key_id,
            secret_access_key=server.secret_access_key,
            client_options={"allow_http": True},
        )
    ) as store:
        yield store


def write_chunks(store: Store) -> None:
    """Write 16 chunks."""
    array = zarr.create_array(
        store, name="chunks", shape=VALUES.shape, chunks=(128, 128), dtype=VALUES.dtype, overwrite=True
    )
    array[:] = VALUES


def read_chunks(store: Store) -> None:
    """Read 16 chunks, and then four of them."""
    array: Any = zarr.open_array(store, path="chunks", mode="r")
    assert (array[:] == VALUES).all()
    assert (array[130:300, 130:300] == VALUES[130:300, 130:300]).all()


def write_shards(store: Store) -> None:
    """Write four shards of 64 chunks of 4 KiB."""
    array = zarr.create_array(
        store,
        name="shards",
        shape=NOISE.shape,
        chunks=(32, 32),
        shards=(256, 256),
        dtype=NOISE.dtype,
        compressors=None,
        overwrite=True,
    )
    array[:] = NOISE


def read_one_chunk(store: Store) -> None:
    """Read one chunk of one shard."""
    array: Any = zarr.open_array(store, path="shards", mode="r")
    assert (array[40:60, 40:60] == NOISE[40:60, 40:60]).all()


def read_rows_of_shards(store: Store) -> None:
    """Read a row of chunks through two shards."""
    array: Any = zarr.open_array(store, path="shards", mode="r")
    assert (array[70:90] == NOISE[70:90]).all()


def read_most_of_a_shard(store: Store) -> None:
    """Read all but one row of the chunks of a shard."""
    array: Any = zarr.open_array(store, path="shards", mode="r")
    assert (array[:224, :256] == NOISE[:224, :256]).all()


def read_shards(store: Store) -> None:
    """Read four shards whole."""
    array: Any = zarr.open_array(store, path="shards", mode="r")
    assert (array[:] == NOISE).all()


def write_series(store: Store) -> None:
    """Write 64 shards of 64 chunks of 4 KiB, one shard for each hour."""
    array = zarr.create_array(
        store,
        name="series",
        shape=SERIES.shape,
        chunks=(1, 32, 32),
        shards=(1, 256, 256),
        dtype=SERIES.dtype,
        compressors=None,
        overwrite=True,
    )
    array[:] = SERIES


def read_point_of_series(store: Store) -> None:
    """Read a point over time: one chunk of each of 64 shards."""
    array: Any = zarr.open_array(store, path="series", mode="r")
    assert (array[:, 40, 50] == SERIES[:, 40, 50]).all()


def dataset() -> xarray.Dataset:
    """Temperatures of forty days."""
    grid = NOISE[:60, :60].astype("f8")
    return xarray.Dataset(
        {"temperature": (("day", "y", "x"), np.stack([grid + day for day in range(DAYS)]))},
        coords={"day": np.arange(DAYS), "y": np.arange(60), "x": np.arange(60)},
        attrs={"source": "a test"},
    )


def write_xarray(store: Store) -> None:
    """Write a dataset of xarray with coordinates."""
    dataset().to_zarr(
        store,
        group="weather",
        mode="w",
        consolidated=False,
        zarr_format=3,
        encoding={"temperature": {"chunks": (10, 60, 60)}},
    )


def read_xarray(store: Store) -> None:
    """Open that by `xarray.open_zarr`, read a point over time, and one day."""
    found = xarray.open_zarr(store, group="weather", consolidated=False, chunks=None)
    expected = dataset()
    xarray.testing.assert_equal(found.isel(x=3, y=4).load(), expected.isel(x=3, y=4))
    xarray.testing.assert_equal(found.sel(day=7).load(), expected.sel(day=7))
    assert found.attrs == expected.attrs


# In this order: what reads finds what was written before.
JOBS: tuple[Callable[[Store], None], ...] = (
    write_chunks,
    read_chunks,
    write_shards,
    read_one_chunk,
    read_rows_of_shards,
    read_most_of_a_shard,
    read_shards,
    write_series,
    read_point_of_series,
    write_xarray,
    read_xarray,
)
