"""Every library's client of the simulator, made the way its manual says. Imports are inside: one library a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.benchmarks.job import Target

if TYPE_CHECKING:
    import opendal
    from obstore.store import S3Store
    from pyarrow.fs import S3FileSystem

    import aioprefetch as ap

REGION = "us-east-1"
ACCESS_KEY_ID = "benchmark"
SECRET_ACCESS_KEY = "benchmark-secret"


def aioprefetch_operator(target: Target, **options: Any) -> ap.Operator:
    """Our operator, with default options unless told otherwise."""
    import aioprefetch as ap

    return ap.Operator.from_uri(
        f"s3://{target.bucket}",
        endpoint_url=target.endpoint_url,
        region=REGION,
        access_key_id=ACCESS_KEY_ID,
        secret_access_key=SECRET_ACCESS_KEY,
        allow_http=True,
        **options,
    )


def obstore_store(target: Target) -> S3Store:
    """obstore's S3 store."""
    from obstore.store import S3Store

    return S3Store(
        target.bucket,
        endpoint=target.endpoint_url,
        region=REGION,
        access_key_id=ACCESS_KEY_ID,
        secret_access_key=SECRET_ACCESS_KEY,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def opendal_operator(target: Target) -> opendal.AsyncOperator:
    """OpenDAL's S3 service."""
    import opendal

    return opendal.AsyncOperator(
        "s3",
        bucket=target.bucket,
        endpoint=target.endpoint_url,
        region=REGION,
        access_key_id=ACCESS_KEY_ID,
        secret_access_key=SECRET_ACCESS_KEY,
        disable_config_load="true",
        disable_ec2_metadata="true",
    )


def s3fs_filesystem(target: Target) -> Any:
    """s3fs, driven as everyone drives it: synchronously, over fsspec's own loop thread."""
    import s3fs

    return s3fs.S3FileSystem(
        key=ACCESS_KEY_ID,
        secret=SECRET_ACCESS_KEY,
        endpoint_url=target.endpoint_url,
        client_kwargs={"region_name": REGION},
        config_kwargs={"s3": {"addressing_style": "path"}},
    )


def boto3_client(target: Target) -> Any:
    """boto3's client; smart_open uses it too."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=target.endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=Config(s3={"addressing_style": "path"}),
    )


def pyarrow_filesystem(target: Target) -> S3FileSystem:
    """Arrow's own S3 file system."""
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(
        endpoint_override=target.endpoint_url.removeprefix("http://"),
        scheme="http",
        region=REGION,
        access_key=ACCESS_KEY_ID,
        secret_key=SECRET_ACCESS_KEY,
    )
