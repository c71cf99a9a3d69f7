"""Large files: an archive of 1 GB and an HDF5 file of 512 MB, with holes; a dataset, a table, an image.

Each is the only object of its job on a server that responds after 10 ms and counts the bytes that it hands to the
kernel, so that a request that a library leaves in its middle counts as far as it came.
"""

import hashlib
import io
import mmap
import os
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
import h5py
import numpy as np
import pandas as pd
import s3fs
import smart_open
import xarray as xr
from obstore.fsspec import FsspecStore
from PIL import Image

import aioprefetch as ap
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.faults import etag_of
from tests.libraries.requests.cost import Cost, Costs, Section, kinds_of
from tests.stores.s3_options import options_of

BUCKET = "bucket"
FIRST_BYTE_SECONDS = 0.01
KIB, MIB = 1 << 10, 1 << 20


# --- what is stored ---------------------------------------------------------------------------------------------------


class FileOfHoles(io.FileIO):
    """A file that is written as any other, and whose zeros take no space on the disk."""

    def write(self, data: Any) -> int:
        view = bytes(data)
        if len(view) < 4 * KIB or view.count(0) < len(view):
            return super().write(view)
        self.seek(len(view), os.SEEK_CUR)
        return len(view)


MEMBERS, MEMBER_BYTES, MEMBER = 2_000, 512 * KIB, "member-1234"
MEMBER_DATA = random.Random(MEMBER).randbytes(MEMBER_BYTES)


def archive(path: Path) -> None:
    """2,000 members of 512 KiB, of which one has something to say."""
    with FileOfHoles(path, "w") as file, zipfile.ZipFile(file, "w") as packed:
        for number in range(MEMBERS):
            name = f"member-{number}"
            packed.writestr(zipfile.ZipInfo(name), MEMBER_DATA if name == MEMBER else bytes(MEMBER_BYTES))


SETS, SET_BYTES = 32, 16 * MIB


def sets_of_hdf5(path: Path) -> None:
    """32 sets of 16 MiB in 8 groups, with three attributes each. The space of a set follows its header."""
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    created.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        for number in range(SETS):
            name = f"group{number % 8}/set{number:02}"
            data = file.create_dataset(name, shape=(SET_BYTES // 8192, 1024), dtype="f8", dcpl=created)
            data.attrs.update({"unit": f"metre {number}", "scale": number / 7, "offset": number})


def grid(path: Path) -> None:
    """A dataset of four variables over a year and a grid, 140 MB, in chunks of a month."""
    days, side = 360, 156
    values = np.random.default_rng(3).random((days, side, side), "f4")
    variables = {name: (("day", "y", "x"), values + number) for number, name in enumerate(("t", "u", "v", "w"))}
    dataset = xr.Dataset(variables, coords={"day": np.arange(days), "y": np.arange(side), "x": np.arange(side)})
    chunks: Any = {name: {"chunksizes": (30, side, side)} for name in variables}
    dataset.to_netcdf(path, engine="h5netcdf", encoding=chunks)


def table(path: Path) -> None:
    """12 columns of 600,000 numbers, in 10 row groups: 58 MB."""
    columns = {f"c{index}": np.random.default_rng(index).random(600_000) for index in range(12)}
    pd.DataFrame(columns).to_parquet(path, row_group_size=60_000)


def image(path: Path) -> None:
    """A PNG of 3 MB."""
    noise = np.random.default_rng(5).integers(0, 255, (1000, 1000, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, "PNG")


# --- what is done with it ---------------------------------------------------------------------------------------------


def zip_member(file: Any) -> object:
    """The names of an archive, and one member."""
    with zipfile.ZipFile(file) as packed:
        names = packed.namelist()
        assert packed.read(MEMBER) == MEMBER_DATA
    return len(names)


def hdf5_walk(file: Any) -> object:
    """Names, shapes and attributes of all sets."""
    found = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.append((name, item.shape, sorted((key, str(value)) for key, value in item.attrs.items())))

    with h5py.File(file, "r") as opened:
        opened.visititems(visit)
    return hashlib.sha256(repr(found).encode()).hexdigest()[:8], len(found)


def xarray_open(file: Any) -> object:
    """What a dataset has: variables, coordinates, attributes."""
    with xr.open_dataset(file, engine="h5netcdf") as opened:
        return sorted(map(str, opened.variables)), dict(opened.sizes), float(opened.day.sum())


def parquet_columns(file: Any) -> object:
    """``pandas.read_parquet`` of 3 of 12 columns."""
    return len(pd.read_parquet(file, columns=["c1", "c5", "c9"]))


def png(file: Any) -> object:
    """An image, decoded."""
    with Image.open(file) as opened:
        opened.load()
        return opened.size


# What is stored for each job, and what it does with it.
JOBS: dict[str, tuple[Callable[[Path], None], Callable[[Any], object], str]] = {
    "zip_member": (archive, zip_member, "list a 1 GB zip file, read one member"),
    "hdf5_walk": (sets_of_hdf5, hdf5_walk, "all attributes of a 512 MB HDF5 file"),
    "xarray_open": (grid, xarray_open, "`xarray.open_dataset`, 140 MB of netCDF"),
    "parquet_columns": (table, parquet_columns, "`pandas.read_parquet`, 3 of 12 columns of 58 MB"),
    "png": (image, png, "Pillow, a PNG of 3 MB"),
}


# --- by whom ----------------------------------------------------------------------------------------------------------


def by_sync_open(server: FaultServer, path: str) -> Any:
    """``ap.sync.open``."""
    return ap.sync.open(
        f"s3://{path}",
        **options_of(server),
    )


def _in_words_of_s3fs(server: FaultServer) -> dict[str, Any]:
    return {
        "key": server.access_key_id,
        "secret": server.secret_access_key,
        "client_kwargs": {"endpoint_url": server.endpoint_url, "region_name": server.region},
        "skip_instance_cache": True,
    }


@contextmanager
def by_our_fsspec(server: FaultServer, path: str) -> Iterator[Any]:
    """The file system of fsspec that ``ap.fsspec.register`` puts in the place of s3fs."""
    fs = ap.fsspec.S3FileSystem(**_in_words_of_s3fs(server))
    try:
        with fs.open(path, "rb") as file:
            yield file
    finally:
        fs.close()


def by_s3fs(server: FaultServer, path: str) -> Any:
    """s3fs, with its own defaults."""
    return s3fs.S3FileSystem(**_in_words_of_s3fs(server)).open(path, "rb")


def by_obstore(server: FaultServer, path: str) -> Any:
    """The file system of fsspec over obstore: files of its own (``open_reader``) fail in most of these libraries."""
    options: Any = {
        "endpoint": server.endpoint_url,
        "region": server.region,
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
        "client_options": {"allow_http": True},
        "skip_instance_cache": True,
    }
    return FsspecStore("s3", **options).open(path, "rb")


def by_smart_open(server: FaultServer, path: str) -> Any:
    """smart_open over boto3."""
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=server.region,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
    )
    return smart_open.open(f"s3://{path}", "rb", transport_params={"client": client})


LIBRARIES: dict[str, Callable[[FaultServer, str], Any]] = {
    "aioprefetch": by_sync_open,
    "aioprefetch fsspec": by_our_fsspec,
    "s3fs": by_s3fs,
    "obstore fsspec": by_obstore,
    "smart_open": by_smart_open,
}


# --- counting ---------------------------------------------------------------------------------------------------------


@contextmanager
def served(objects: Mapping[str, Any]) -> Iterator[FaultServer]:
    """A server of some objects, on the loop thread of the process."""
    server = FaultServer(objects, [Rule(fault=Fault(delay_head_seconds=FIRST_BYTE_SECONDS), times=None)])
    ap.sync.run(server.__aenter__())
    try:
        yield server
    finally:
        ap.sync.run(server.__aexit__(None, None, None))


def measured(names: Sequence[str]) -> Costs:
    """The cost of some jobs, each library on a server of its own."""
    found: Costs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            make, job, _ = JOBS[name]
            path = Path(folder) / name
            make(path)
            with path.open("rb") as file:
                # A view can be cut without a copy, and is a key of the cache of ETags. It lives as long as the process.
                content: Any = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                etag_of(content)  # The digest of 1 GB must not delay the first response.
            path.unlink()
            found[name] = {library: _counted(content, open_by, job) for library, open_by in LIBRARIES.items()}
    return found


def _counted(content: Any, open_by: Callable[[FaultServer, str], Any], job: Callable[[Any], object]) -> Cost:
    path = f"{BUCKET}/key"
    with served({path: content}) as server:
        with open_by(server, path) as file:
            result = job(file)
        with suppress(TimeoutError):  # Of a library that leaves a response to the collector of garbage.
            ap.sync.run(server.wait_until_quiet())
        kinds = kinds_of((request.method, request.target) for request in server.requests)
        return Cost(kinds, server.bytes_sent, result)


SECTION = Section(
    name="files",
    title="Files by URL",
    about="Opened by each library with its defaults, and given to what reads them.",
    libraries=tuple(LIBRARIES),
    jobs={name: job[2] for name, job in JOBS.items()},
    measure=measured,
)
