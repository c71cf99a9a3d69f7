"""A plugin of pytest that puts our file system in the place of s3fs's, for s3fs's own test file.

``pytest -p tests.libraries.s3fs_suite test_s3fs.py``. What the tests prepare and look at by the client of s3fs
(``fs.s3``, ``fs.call_s3``), boto3 does for them.
"""

from typing import Any

import boto3
import pytest
import s3fs
from fsspec.registry import register_implementation

from aioprefetch.fsspec import S3FileSystem
from aioprefetch.fsspec.verbs import blocking

ENDPOINT = "http://127.0.0.1:5555/"


class Client:
    """The methods of a client of boto3, as coroutines."""

    def __init__(self) -> None:
        self._client = boto3.client("s3", endpoint_url=ENDPOINT, region_name="us-east-1")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        async def call(**parameters: Any) -> Any:
            return method(**parameters)

        return call


class AdaptedFileSystem(S3FileSystem):
    """Ours, with the client of s3fs, and parts of its size."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **{"part_bytes": 5 << 20, **options})

    @property
    def s3(self) -> Client:
        return Client()

    async def _call_s3(self, method: str, **parameters: Any) -> Any:
        return await getattr(Client(), method)(**parameters)

    async def _make_bucket_versioned(self, bucket: str, versioned: bool = True) -> None:
        status = {"Status": "Enabled" if versioned else "Suspended"}
        await Client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration=status)

    make_bucket_versioned = blocking(_make_bucket_versioned)


def pytest_configure(config: pytest.Config) -> None:
    """Before the test file imports them."""
    s3fs.S3FileSystem = s3fs.core.S3FileSystem = AdaptedFileSystem
    for protocol in ("s3", "s3a"):
        register_implementation(protocol, AdaptedFileSystem, clobber=True)
