"""Every library's client of the simulator, made the way its manual says. Imports are inside: one library a process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.job import WARM_OBJECT, Target

if TYPE_CHECKING:
    import opendal
    from obstore.store import S3Store
    from pyarrow.fs import S3FileSystem
    from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

    import aioprefetch as ap

REGION = "us-east-1"
ACCESS_KEY_ID = "benchmark"
SECRET_ACCESS_KEY = "benchmark-secret"
# botocore's default.
CONNECTIONS = 10
# As s3torchconnector divides objects by default, and a target that no connection of these machines reaches.
MOUNTPOINT_PART_BYTES = 8 << 20
MOUNTPOINT_TARGET_GBPS = 50.0


def aioprefetch_options(target: Target) -> dict[str, Any]:
    """The options of our service of S3."""
    return {
        "endpoint_url": target.endpoint_url,
        "region": REGION,
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET_ACCESS_KEY,
        "allow_http": True,
        **({"ca_bundle": target.ca_bundle} if target.ca_bundle else {}),
    }


def aioprefetch_recipe(target: Target, **options: Any) -> ap.Operator:
    """Our operator, with default options where ``options`` has no other."""
    import aioprefetch as ap

    return ap.Operator.from_uri(f"s3://{target.bucket}", **aioprefetch_options(target), **options)


@contextlib.asynccontextmanager
async def aioprefetch_operator(target: Target, **options: Any) -> AsyncIterator[ap.Operator]:
    """Our operator for a block, whose reads must all go over our own transport."""
    async with over_our_transport(aioprefetch_recipe(target, **options)) as operator:
        yield operator


@contextlib.asynccontextmanager
async def over_our_transport(operator: ap.Operator) -> AsyncIterator[ap.Operator]:
    """Any operator for a block; an AssertionError at its end when a read took the way of the service's own library."""
    async with operator:
        try:
            yield operator
        except GeneratorExit:  # a stream that is left at its last byte
            check_transport(operator.statistics)
            raise
        check_transport(operator.statistics)


@contextlib.contextmanager
def aioprefetch_blocking(target: Target, **options: Any) -> Iterator[ap.sync.BlockingOperator]:
    """The same for code without an event loop."""
    import aioprefetch as ap

    with ap.sync.BlockingOperator(aioprefetch_recipe(target, **options)) as operator:
        yield operator
        check_transport(operator.statistics)


def check_transport(statistics: Mapping[str, float]) -> None:
    """Our own transport was used: what is measured is what it says.

    Raises:
        AssertionError: nothing went this way.
    """
    assert statistics["transport_requests"] > 0, "nothing went over our own transport"


def obstore_options(target: Target) -> dict[str, Any]:
    """The options of obstore's store and of the file system on it."""
    trusted = {"root_certificate": Path(target.ca_bundle).read_text()} if target.ca_bundle else {}
    return {
        "endpoint": target.endpoint_url,
        "region": REGION,
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET_ACCESS_KEY,
        "virtual_hosted_style_request": False,
        "client_options": {"allow_http": True, **trusted},
    }


def obstore_store(target: Target) -> S3Store:
    """obstore's S3 store."""
    from obstore.store import S3Store

    return S3Store(target.bucket, **obstore_options(target))


async def warm_obstore_store(target: Target) -> S3Store:
    """The same with its first connection."""
    import obstore

    store = obstore_store(target)
    await obstore.get_range_async(store, WARM_OBJECT, start=0, length=1)
    return store


def opendal_options(target: Target) -> dict[str, str]:
    """The options of OpenDAL's service of S3."""
    return {
        "bucket": target.bucket,
        "endpoint": target.endpoint_url,
        "region": REGION,
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET_ACCESS_KEY,
        "disable_config_load": "true",
        "disable_ec2_metadata": "true",
    }


def opendal_operator(target: Target) -> opendal.AsyncOperator:
    """OpenDAL's S3 service."""
    import opendal

    return opendal.AsyncOperator("s3", **opendal_options(target))


def s3fs_filesystem(target: Target, *, asynchronous: bool = False, connections: int = CONNECTIONS) -> Any:
    """s3fs, driven as everyone drives it: synchronously, over fsspec's own loop thread, unless ``asynchronous``."""
    import s3fs

    return s3fs.S3FileSystem(
        key=ACCESS_KEY_ID,
        secret=SECRET_ACCESS_KEY,
        endpoint_url=target.endpoint_url,
        asynchronous=asynchronous,
        client_kwargs={"region_name": REGION, **({"verify": target.ca_bundle} if target.ca_bundle else {})},
        config_kwargs={"s3": {"addressing_style": "path"}, "max_pool_connections": max(connections, CONNECTIONS)},
    )


def botocore_options(target: Target) -> dict[str, Any]:
    """The options of boto3 and aiobotocore, apart from their own kind of configuration."""
    return {
        "endpoint_url": target.endpoint_url,
        "region_name": REGION,
        "aws_access_key_id": ACCESS_KEY_ID,
        "aws_secret_access_key": SECRET_ACCESS_KEY,
        "verify": target.ca_bundle or None,
    }


def boto3_client(target: Target, *, connections: int = CONNECTIONS) -> Any:
    """boto3's client; smart_open uses it too."""
    import boto3
    from botocore.config import Config

    config = Config(s3={"addressing_style": "path"}, max_pool_connections=max(connections, CONNECTIONS))
    return boto3.client("s3", config=config, **botocore_options(target))


@contextlib.asynccontextmanager
async def aiobotocore_client(target: Target, *, connections: int = CONNECTIONS) -> AsyncIterator[Any]:
    """aiobotocore's client."""
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    config = AioConfig(s3={"addressing_style": "path"}, max_pool_connections=max(connections, CONNECTIONS))
    async with get_session().create_client("s3", config=config, **botocore_options(target)) as client:
        yield client


def pyarrow_filesystem(target: Target, *, connections: int = 0) -> S3FileSystem:
    """Arrow's own S3 file system, with the threads of Arrow's default where more ``connections`` are not needed."""
    import pyarrow as pa
    from pyarrow.fs import S3FileSystem

    # A client opens as many connections as there are threads when it is made.
    if connections > pa.io_thread_count():
        pa.set_io_thread_count(connections)
    return S3FileSystem(
        endpoint_override=target.endpoint_url.partition("://")[2],
        scheme=target.endpoint_url.partition("://")[0],
        tls_ca_file_path=target.ca_bundle or None,
        region=REGION,
        access_key=ACCESS_KEY_ID,
        secret_key=SECRET_ACCESS_KEY,
    )


def mountpoint_client(target: Target) -> MountpointS3Client:
    """mountpoint-s3's client, as s3torchconnector has it. It takes keys from the environment, and no certificate."""
    from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

    os.environ.update(
        AWS_ACCESS_KEY_ID=ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY=SECRET_ACCESS_KEY, AWS_EC2_METADATA_DISABLED="true"
    )
    return MountpointS3Client(
        REGION,
        endpoint=target.endpoint_url,
        force_path_style=True,
        part_size=MOUNTPOINT_PART_BYTES,
        throughput_target_gbps=MOUNTPOINT_TARGET_GBPS,
    )
