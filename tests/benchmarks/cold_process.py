"""What a cold process does: import a library, and read the first bytes of an object. The job ``import-first-byte``.

Run as a script, in a process of its own, so that nothing is loaded but what the library loads:
``python -P cold_process.py NAME STARTED ENDPOINT BUCKET KEY REGION ACCESS_KEY_ID SECRET_ACCESS_KEY CA_BUNDLE``. It
prints a line of JSON. STARTED is the monotonic clock when its parent started it; CA_BUNDLE is empty without TLS, and
the keys where they are in the environment.

Each contestant is a generator: it imports, yields, and yields the first bytes.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing is not loaded: that would be a part of what is measured
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

READ_BYTES = 4096


class Place:
    """Where the object is, and how to get there."""

    def __init__(
        self, endpoint_url: str, bucket: str, key: str, region: str, key_id: str, secret: str, ca_bundle: str
    ) -> None:
        self.endpoint_url, self.ca_bundle = endpoint_url, ca_bundle
        self.bucket, self.key = bucket, key
        self.region, self.key_id, self.secret = region, key_id, secret


def aioprefetch_read(place: Place) -> Iterator[Any]:
    """``Operator.read``."""
    import asyncio

    import aioprefetch as ap

    yield None

    async def read() -> bytes:
        async with aioprefetch_operator(ap, place) as operator:
            return bytes(await operator.read(place.key, offset=0, size=READ_BYTES))

    yield asyncio.run(read())


def aioprefetch_file(place: Place) -> Iterator[Any]:
    """``ap.sync.open``, whose first request is a block."""
    import aioprefetch as ap

    yield None
    with ap.sync.open(place.key, operator=aioprefetch_operator(ap, place)) as file:
        yield file.read(READ_BYTES)


def aioprefetch_operator(ap: Any, place: Place) -> Any:
    """An operator for the bucket."""
    options = {"endpoint_url": place.endpoint_url, "region": place.region, "allow_http": True}
    if place.key_id:
        options |= {"access_key_id": place.key_id, "secret_access_key": place.secret}
    if place.ca_bundle:
        options["ca_bundle"] = place.ca_bundle
    return ap.Operator.from_uri(f"s3://{place.bucket}", **options)


def obstore(place: Place) -> Iterator[Any]:
    """``get_range``."""
    import obstore
    from obstore.store import S3Store

    yield None
    client_options: Any = {"allow_http": True}
    if place.ca_bundle:
        with open(place.ca_bundle, encoding="ascii") as bundle:
            client_options["root_certificate"] = bundle.read()
    store = S3Store(
        place.bucket,
        endpoint=place.endpoint_url,
        region=place.region,
        access_key_id=place.key_id,
        secret_access_key=place.secret,
        virtual_hosted_style_request=False,
        client_options=client_options,
    )
    yield obstore.get_range(store, place.key, start=0, length=READ_BYTES)


def mountpoint(place: Place) -> Iterator[Any]:
    """``get_object`` of mountpoint-s3's client, which takes keys from the environment alone."""
    from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

    yield None
    os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = place.key_id, place.secret
    client = MountpointS3Client(
        place.region,
        endpoint=place.endpoint_url,
        force_path_style=True,
        part_size=8 << 20,
        throughput_target_gbps=50.0,
    )
    yield b"".join(client.get_object(place.bucket, place.key, start=0, end=READ_BYTES))


def s3fs(place: Place) -> Iterator[Any]:
    """``open`` with the default cache."""
    import s3fs

    yield None
    filesystem = s3fs.S3FileSystem(
        key=place.key_id,
        secret=place.secret,
        endpoint_url=place.endpoint_url,
        client_kwargs={"region_name": place.region},
        config_kwargs={"s3": {"addressing_style": "path"}},
    )
    yield filesystem.open(f"{place.bucket}/{place.key}", "rb").read(READ_BYTES)


def boto3(place: Place) -> Iterator[Any]:
    """``get_object``."""
    import boto3
    from botocore.config import Config

    yield None
    client = boto3.client(
        "s3",
        endpoint_url=place.endpoint_url,
        region_name=place.region,
        aws_access_key_id=place.key_id,
        aws_secret_access_key=place.secret,
        config=Config(s3={"addressing_style": "path"}),
    )
    yield client.get_object(Bucket=place.bucket, Key=place.key, Range=f"bytes=0-{READ_BYTES - 1}")["Body"].read()


def pyarrow(place: Place) -> Iterator[Any]:
    """``open_input_file``."""
    from pyarrow.fs import S3FileSystem

    yield None
    filesystem = S3FileSystem(
        endpoint_override=place.endpoint_url.removeprefix("http://"),
        scheme="http",
        region=place.region,
        access_key=place.key_id,
        secret_key=place.secret,
    )
    yield filesystem.open_input_file(f"{place.bucket}/{place.key}").read(READ_BYTES)


CONTESTANTS: dict[str, Callable[[Place], Iterator[Any]]] = {
    "aioprefetch read": aioprefetch_read,
    "aioprefetch file": aioprefetch_file,
    "obstore": obstore,
    "s3torchconnectorclient": mountpoint,
    "s3fs": s3fs,
    "pyarrow S3FileSystem": pyarrow,
    "boto3": boto3,
}


def status_bytes(field: str) -> int:
    """A figure of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) << 10
    raise LookupError(field)


def main(name: str, started: str, *place: str) -> int:
    """Import, read, print; 0 when the bytes were right."""
    first_line = time.perf_counter()
    steps = CONTESTANTS[name](Place(*place))
    next(steps)
    imported, imported_bytes = time.perf_counter(), status_bytes("VmRSS")
    data = next(steps)
    read, cpu_seconds = time.perf_counter(), time.process_time()
    assert (len(data), bytes(data)[:8]) == (READ_BYTES, bytes(8)), bytes(data)[:20]  # a page begins with its offset
    print(
        f'{{"wall_seconds": {read - float(started)}, "cpu_seconds": {cpu_seconds},'
        f' "import_seconds": {imported - first_line}, "first_byte_seconds": {read - imported},'
        f' "imported_bytes": {imported_bytes}, "peak_bytes": {status_bytes("VmHWM")}}}',
        flush=True,
    )
    return 0


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    # Nothing is measured any more; some runtimes take long to end, or abort.
    os._exit(status)
