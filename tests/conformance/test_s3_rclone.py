"""Both suites over the s3 service, against `rclone serve s3`."""

from collections.abc import Callable, Iterator
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from aioprefetch.services.s3 import S3
from aioprefetch.testing.accessor_suite import AccessorSuite
from aioprefetch.testing.reader_suite import ReaderSuite
from tests.stores.rclone_server import RcloneS3Server
from tests.stores.s3_options import options_of
from tests.stores.stacks import EachStack


class RcloneBucket:
    """A bucket on rclone, reached by botocore alone."""

    def __init__(self, server: RcloneS3Server, name: str) -> None:
        self.name = name
        self._client: Any = botocore.session.get_session().create_client(
            "s3",
            region_name=server.region,
            endpoint_url=server.endpoint_url,
            aws_access_key_id=server.access_key_id,
            aws_secret_access_key=server.secret_access_key,
            config=Config(s3={"addressing_style": "path"}, response_checksum_validation="when_required"),
        )
        self._client.create_bucket(Bucket=name)

    def put(self, key: str, data: bytes) -> None:
        """Store an object."""
        self._client.put_object(Bucket=self.name, Key=key, Body=data)

    def get(self, key: str) -> bytes | None:
        """The bytes of an object, None where there is none."""
        try:
            with self._client.get_object(Bucket=self.name, Key=key)["Body"] as body:
                data: bytes = body.read()
                return data
        except self._client.exceptions.NoSuchKey:
            return None

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


@pytest.fixture(scope="session")
def rclone_bucket(rclone_server: RcloneS3Server, random_name: Callable[[], str]) -> Iterator[RcloneBucket]:
    """One bucket for the session; each test has a prefix of its own."""
    bucket = RcloneBucket(rclone_server, random_name())
    yield bucket
    bucket.close()


class OnRclone(EachStack):
    """Objects in files that rclone serves, put there by botocore."""

    lacks = frozenset(
        {
            *("double_slash_keys", "keeps_versions", "empty_directories"),
            *("enforces_write_conditions", "enforces_copy_conditions", "enforces_delete_conditions"),
        }
    )
    secrets: tuple[str, ...] = (RcloneS3Server.secret_access_key,)

    @pytest.fixture
    def service(self, rclone_server: RcloneS3Server, rclone_bucket: RcloneBucket, random_name: Callable[[], str]) -> S3:
        """A prefix of its own for each test."""
        self.bucket, self.prefix = rclone_bucket, random_name()
        return S3(
            bucket=rclone_bucket.name,
            prefix=self.prefix,
            **options_of(rclone_server),
        )

    async def put_directly(self, path: str, data: bytes) -> None:
        """By botocore."""
        self.bucket.put(f"{self.prefix}/{path}", data)

    async def get_directly(self, path: str) -> bytes | None:
        """By botocore."""
        return self.bucket.get(f"{self.prefix}/{path}")


class TestAccessor(OnRclone, AccessorSuite):
    """Operations."""


class TestReader(OnRclone, ReaderSuite):
    """Readers."""
