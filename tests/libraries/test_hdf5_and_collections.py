"""h5py beside the garbage collector: its destructors want a lock that a reader holds while it waits for us.

Each store is tried for two seconds in `make test`, and for five minutes in `make test-sweeps`.
"""

import sys

import pytest

from tests.probes.programs import completed
from tests.probes.search import IS_LONG, SECONDS

DURATION_SECONDS = min(SECONDS, 300.0) if IS_LONG else 2.0

PROGRAM = """
import io, sys, tempfile, threading, time
import h5py, numpy
import aioprefetch as ap, aioprefetch.fsspec
from tests.stores.rclone_server import RcloneS3Server  # A process of its own: no collection stops it.

made = io.BytesIO()
with h5py.File(made, "w") as file:
    file["big"] = numpy.arange(2_000_000, dtype="f8")
    file["x"] = numpy.arange(10)

class Node: pass

def read(fs, path, until):
    with fs.open(path, block_size=1 << 16, cache_type="none") as stored, h5py.File(stored) as file:
        while time.monotonic() < until:
            node = Node()
            node.itself, node.dataset = node, file["x"]  # Garbage with a cycle, which only the collector finds.
            del node
            reads.append(None)
            place = len(reads) * 9973 % 1_900_000
            assert file["big"][place] == place

reads = []
with RcloneS3Server() as server, tempfile.TemporaryDirectory() as directory:
    (server.root / "bucket").mkdir()
    small = {"memory_bytes": 4 << 20, "block_bytes": 1 << 20}
    keys = {"key": server.access_key_id, "secret": server.secret_access_key}
    fs, path = {
        # With less memory than there is to read, so that reads wait.
        "s3": lambda: (ap.fsspec.S3FileSystem(endpoint_url=server.endpoint_url, **small, **keys), "bucket/k"),
        "file": lambda: (ap.fsspec.LocalFileSystem(), f"{directory}/k"),
    }[sys.argv[1]]()
    fs.pipe_file(path, made.getvalue())
    until = time.monotonic() + float(sys.argv[2])
    readers = [threading.Thread(target=read, args=(fs, path, until)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
print(len(reads) > 20)
"""


@pytest.mark.timeout(DURATION_SECONDS + 120)
@pytest.mark.parametrize("store", ["file", "s3"])
def test_datasets_are_read_while_others_are_collected(store: str) -> None:
    """Two threads, which share h5py's lock, with the collector as Python sets it."""
    command = [sys.executable, "-c", PROGRAM, store, str(DURATION_SECONDS)]
    run = completed(command, timeout_seconds=DURATION_SECONDS + 60)
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr
