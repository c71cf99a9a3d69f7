"""The file of the demo, 600 column chunks in 800 kB, read whole by pyarrow through several files over a counting S3."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import opendal
import pyarrow.parquet as pq
from pyarrow.fs import S3FileSystem

import aioprefetch as ap
from aioprefetch.cli.demo import DropOnSeekReader, sample_parquet
from aioprefetch.testing import CountingS3Server
from tests.libraries.requests.cost import Cost, Costs, Section, kinds_of

BUCKET, KEY = "measured", "sample.parquet"
JOBS = {"groups": False, "plan": True}


def readers(server: CountingS3Server, data: bytes) -> dict[str, Callable[[], Any]]:
    """Put the file into a bucket of the server; how each reader opens it."""
    keys = {"access_key_id": server.access_key_id, "secret_access_key": server.secret_access_key}
    store = {"region": server.region, **keys}
    ours: dict[str, Any] = {"endpoint_url": server.endpoint_url, **store}
    fetching = ap.sync.BlockingOperator(ap.Operator.from_uri(f"s3://{BUCKET}", **ours))
    arrow = S3FileSystem(
        access_key=server.access_key_id,
        secret_key=server.secret_access_key,
        region=server.region,
        scheme="http",
        endpoint_override=server.endpoint_url.removeprefix("http://"),
        allow_bucket_creation=True,
    )
    arrow.create_dir(BUCKET)
    fetching.write(KEY, data)
    quiet = {"disable_config_load": "true", "disable_ec2_metadata": "true"}
    dal = opendal.Operator("s3", bucket=BUCKET, endpoint=server.endpoint_url, **store, **quiet)
    return {
        "aioprefetch": lambda: ap.sync.open(f"s3://{BUCKET}/{KEY}", **ours),
        "pyarrow.fs": lambda: arrow.open_input_file(f"{BUCKET}/{KEY}"),
        "opendal": lambda: io.BufferedReader(dal.open(KEY, "rb")),
        "drops its buffer on seek": lambda: DropOnSeekReader(
            lambda start, end: fetching.read(KEY, offset=start, size=end - start), len(data)
        ),
    }


def measured(names: Sequence[str]) -> Costs:
    """The cost of reading all of the file, by each reader."""
    data = sample_parquet()
    found: Costs = {name: {} for name in names}
    with CountingS3Server() as server:
        for library, opened in readers(server, data).items():
            for name in names:
                server.reset()
                with opened() as file:
                    read = pq.ParquetFile(file, pre_buffer=JOBS[name]).read()
                kinds = kinds_of((request.method, request.query) for request in server.requests)
                found[name][library] = Cost(kinds, server.bytes_sent, read.shape)
    return found


SECTION = Section(
    name="small-file",
    title="One small file",
    about=(
        "The file of `make demo` through `ap.sync.open`, `pyarrow.fs.S3FileSystem`, `opendal` in `io.BufferedReader`,"
        " and a file that drops its buffer on each seek and is given the size."
    ),
    libraries=("aioprefetch", "pyarrow.fs", "opendal", "drops its buffer on seek"),
    jobs={
        "groups": "`pyarrow.parquet`, `pre_buffer=False`: chunk by chunk",
        "plan": "`pyarrow.parquet`, `pre_buffer=True`: by its own plan",
    },
    measure=measured,
)
