"""HDF5, images and archives through a file by its URL: a few requests, few bytes, and what a local file gives.

The blocks are of 1 MiB, so that small files show what large ones cost.
"""

import io
import random
import tarfile
import zipfile
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from aioprefetch.blocks.store import FREE_BYTES_MAX
from tests.libraries.conftest import Store
from tests.stores.computed_store import KIB, MIB, repeated

BLOCK = MIB
# A small request brings up to FREE_BYTES_MAX, however fast the machine is at the moment.
TAIL = MIB  # What a read of the end asks for: of an object larger than that, it may be all that is read.
SEED = 7


# --- HDF5 -------------------------------------------------------------------------------------------------------------

SETS, ROWS, COLUMNS = 8, 512, 1024
SET_BYTES = ROWS * COLUMNS * 8
CHUNK_ROWS = 64
CHUNK_BYTES = CHUNK_ROWS * COLUMNS * 8


@pytest.fixture(scope="module", params=["chunked", "contiguous"])
def hdf5(request: pytest.FixtureRequest) -> bytes:
    """Eight sets of 4 MiB in two groups; each value tells where it stands."""
    packed = io.BytesIO()
    layout = {"chunks": (CHUNK_ROWS, COLUMNS)} if request.param == "chunked" else {}
    with h5py.File(packed, "w") as file:
        for number in range(SETS):
            data = file.create_dataset(f"group{number % 2}/set{number}", shape=(ROWS, COLUMNS), dtype="f8", **layout)
            data[:] = np.arange(number * ROWS * COLUMNS, (number + 1) * ROWS * COLUMNS).reshape(ROWS, COLUMNS)
            data.attrs["unit"] = f"metre {number}"
    return packed.getvalue()


def attributes(file: h5py.File) -> dict[str, tuple[Any, ...]]:
    """Names, shapes and attributes: what a listing of a file reads."""
    found = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = (item.shape, item.attrs["unit"])

    file.visititems(visit)
    return found


@pytest.mark.parametrize("policy", ["adaptive", "columnar"])
def test_metadata_and_a_slice_of_hdf5(store: Store, hdf5: bytes, policy: str) -> None:
    stored = store(hdf5)
    with (
        h5py.File(io.BytesIO(hdf5)) as local,
        stored.open(block_bytes=BLOCK, policy=policy) as file,
        h5py.File(file) as remote,
    ):
        # It looks for the end of the file, then for its beginning.
        assert len(stored.ranges) <= 3
        assert stored.bytes_sent <= TAIL + BLOCK + FREE_BYTES_MAX
        stored.forget()
        assert attributes(remote) == attributes(local)
        # The headers of each set lie beside each other, 4 MiB from the next ones. A block is filled at most.
        assert len(stored.ranges) <= 2 * SETS
        assert stored.bytes_sent <= BLOCK + SETS * FREE_BYTES_MAX
        stored.forget()
        assert np.array_equal(remote["group1/set5"][100:110], local["group1/set5"][100:110])
        # The rows lie in one chunk, whose place came with the header.
        assert len(stored.ranges) <= 2
        assert stored.bytes_sent <= CHUNK_BYTES + FREE_BYTES_MAX
        stored.forget()
        assert np.array_equal(remote["group0/set6"][:], local["group0/set6"][:])
        # Looking ahead, a run asks for no more than it has read.
        assert stored.bytes_sent <= 2 * SET_BYTES
    assert repeated(stored.ranges) == []


# --- images -----------------------------------------------------------------------------------------------------------


def image_file(kind: str) -> bytes:
    """About 3 MiB of noise as PNG, 1.5 MiB as JPEG."""
    noise = np.random.default_rng(SEED).integers(0, 255, (1000, 1000, 3), dtype=np.uint8)
    packed = io.BytesIO()
    Image.fromarray(noise).save(packed, kind, **({"quality": 97} if kind == "JPEG" else {}))
    return packed.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_the_size_of_an_image_is_one_request_and_the_image_is_read_once(store: Store, kind: str) -> None:
    data = image_file(kind)
    assert len(data) > BLOCK
    stored = store(data)
    with stored.open(block_bytes=BLOCK) as file, Image.open(file) as image:
        assert image.size == (1000, 1000)
        assert stored.ranges == [(0, BLOCK)]
        image.load()
        with Image.open(io.BytesIO(data)) as local:
            assert image.tobytes() == local.tobytes()
    assert stored.bytes_sent == len(data)
    assert repeated(stored.ranges) == []


def test_the_size_of_an_image_asks_for_no_more_than_is_read_under_random(store: Store) -> None:
    """A directory of thumbnails of which only the sizes are wanted."""
    stored = store(image_file("PNG"))
    with stored.open(policy="random") as file, Image.open(file) as image:
        assert image.size == (1000, 1000)
    assert stored.bytes_sent <= 4 * KIB


# --- archives ---------------------------------------------------------------------------------------------------------

MEMBERS, MEMBER_BYTES = 120, 60_000


def member(number: int) -> tuple[str, bytes]:
    return f"directory/member-{number:04}", random.Random(number).randbytes(MEMBER_BYTES)


def tar_file() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number in range(MEMBERS):
            name, data = member(number)
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return packed.getvalue()


def test_a_tar_file_is_listed_and_some_members_are_extracted(store: Store) -> None:
    """Its headers stand between the members, every 60 kB: a request for each costs more than the bytes between them."""
    data = tar_file()
    stored = store(data)
    with stored.open(block_bytes=BLOCK) as file, tarfile.open(fileobj=file) as archive:
        with tarfile.open(fileobj=io.BytesIO(data)) as local:
            assert archive.getnames() == local.getnames()
        assert len(stored.ranges) <= len(data) // BLOCK + 1
        assert stored.bytes_sent <= len(data)
        stored.forget()
        for number in (100, 3, 57):
            name, content = member(number)
            extracted = archive.extractfile(name)
            assert extracted is not None
            assert extracted.read() == content
        assert stored.ranges == []  # All of it has come.


LARGE_MEMBERS, LARGE_MEMBER_BYTES = 8, 3 * MIB


def test_a_tar_file_of_large_members_is_listed_by_its_headers(store: Store) -> None:
    """A header, and little behind it, for each member; then the bytes of one member."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number in range(LARGE_MEMBERS):
            about = tarfile.TarInfo(f"member-{number}")
            about.size = LARGE_MEMBER_BYTES
            archive.addfile(about, io.BytesIO(bytes([number]) * LARGE_MEMBER_BYTES))
    stored = store(packed.getvalue())
    with stored.open(block_bytes=BLOCK) as file, tarfile.open(fileobj=file) as archive:
        assert len(archive.getnames()) == LARGE_MEMBERS
        # The first request is a block, and so is one until the reads have shown that they skip; then the end mark.
        assert len(stored.ranges) <= LARGE_MEMBERS + 2
        assert stored.bytes_sent <= 2 * BLOCK + LARGE_MEMBERS * FREE_BYTES_MAX
        stored.forget()
        extracted = archive.extractfile("member-5")
        assert extracted is not None
        assert extracted.read() == bytes([5]) * LARGE_MEMBER_BYTES
        assert stored.bytes_sent <= LARGE_MEMBER_BYTES + 2 * BLOCK


def test_a_zip_file_gives_its_names_and_some_members(store: Store) -> None:
    """The directory is in the tail; each member is one request, with its header."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(MEMBERS):
            archive.writestr(*member(number))
    stored = store(packed.getvalue())
    chosen = [5, 30, 55, 70, 90]
    with stored.open(block_bytes=BLOCK) as file, zipfile.ZipFile(file) as archive:
        assert len(archive.namelist()) == MEMBERS
        assert stored.bytes_sent <= TAIL
        for number in chosen:
            name, content = member(number)
            assert archive.read(name) == content
    # The first request behind the tail is a block, as of each file of which no member is known yet.
    assert len(stored.ranges) <= len(chosen) + 2
    assert stored.bytes_sent <= TAIL + BLOCK + len(chosen) * (MEMBER_BYTES + FREE_BYTES_MAX)
    assert repeated(stored.ranges) == []
