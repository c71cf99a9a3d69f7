"""How many requests pyarrow causes through several readers: prints the table of the README.

Run it as a script from the root of the repository, with the extra ``dev`` installed.
"""

import io
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import opendal
import pyarrow.parquet as pq
from pyarrow.fs import S3FileSystem

import aioprefetch as ap
from aioprefetch.cli.demo import DropOnSeekReader, sample_parquet
from aioprefetch.testing import CountingS3Server

BUCKET, KEY = "measured", "sample.parquet"


def readers(server: CountingS3Server, data: bytes) -> dict[str, Callable[[], Any]]:
    """Put the file into a bucket of the server; how each reader opens it."""
    keys = {"access_key_id": server.access_key_id, "secret_access_key": server.secret_access_key}
    store = {"region": server.region, **keys}
    operator = ap.Operator.from_uri(f"s3://{BUCKET}", endpoint_url=server.endpoint_url, **store)
    fetching = ap.sync.BlockingOperator(operator)
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
        "a file that drops its buffer on seek": lambda: DropOnSeekReader(
            lambda start, end: fetching.read(KEY, offset=start, size=end - start), len(data)
        ),
        f"`pyarrow.fs.S3FileSystem` {version('pyarrow')}": lambda: arrow.open_input_file(f"{BUCKET}/{KEY}"),
        f"`opendal` {version('opendal')} in `io.BufferedReader`": lambda: io.BufferedReader(dal.open(KEY, "rb")),
        "aioprefetch, `ap.sync.open`": lambda: ap.sync.open(KEY, operator=operator),
    }


def measure(server: CountingS3Server, opened: Callable[[], Any], *, pre_buffer: bool) -> tuple[str, int]:
    """What the server was asked while pyarrow read all of the file, and the bytes it sent."""
    server.reset()
    with opened() as file:
        pq.ParquetFile(file, pre_buffer=pre_buffer).read()
    heads = server.count("HEAD")
    return f"{server.count('GET')} GET" + (f" + {heads} HEAD" if heads else ""), server.bytes_sent


def main() -> None:
    """Print the table."""
    data = sample_parquet()
    lines = [
        "| opened with | `pre_buffer=False` | `pre_buffer=True` | bytes sent, `False` |",
        "| --- | --- | --- | --- |",
    ]
    with CountingS3Server() as server:
        for name, opened in readers(server, data).items():
            plain, sent = measure(server, opened, pre_buffer=False)
            merged, _ = measure(server, opened, pre_buffer=True)
            lines.append(f"| {name} | {plain} | {merged} | {sent:,} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
