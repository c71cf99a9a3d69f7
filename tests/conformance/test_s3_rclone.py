"""Both suites over the s3 service, against `rclone serve s3`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aioprefetch.services.s3 import S3
from aioprefetch.testing import RcloneS3Server
from aioprefetch.testing.accessor_suite import AccessorSuite
from aioprefetch.testing.reader_suite import ReaderSuite
from tests.conformance.stacks import EachStack, get_file, put_file


@pytest.fixture
def bucket_folder(rclone_server: RcloneS3Server, random_name: Callable[[], str]) -> Path:
    """The directory of a bucket for one test: rclone gets slower the more lies in one."""
    folder = rclone_server.root / random_name()
    folder.mkdir()
    return folder


class OnRclone(EachStack):
    """Objects in files that rclone serves."""

    stacks: tuple[str, ...] = ("default",)  # a request to rclone costs ten times what one to moto costs
    lacks = frozenset(
        {"double_slash_keys", "enforces_write_conditions", "keeps_versions", "empty_directories", "special_key_writes"}
    )
    secrets: tuple[str, ...] = (RcloneS3Server.secret_access_key,)

    @pytest.fixture
    def service(self, rclone_server: RcloneS3Server, bucket_folder: Path, random_name: Callable[[], str]) -> S3:
        """A prefix of its own for each test."""
        self.root = bucket_folder / random_name()
        return S3(
            bucket=bucket_folder.name,
            prefix=self.root.name,
            endpoint_url=rclone_server.endpoint_url,
            region=rclone_server.region,
            access_key_id=rclone_server.access_key_id,
            secret_access_key=rclone_server.secret_access_key,
        )

    async def put_directly(self, path: str, data: bytes) -> None:
        """As a file below the bucket's directory."""
        put_file(self.root, path, data)

    async def get_directly(self, path: str) -> bytes | None:
        """From the file."""
        return get_file(self.root, path)


class TestAccessor(OnRclone, AccessorSuite):
    """Operations."""


class TestReader(OnRclone, ReaderSuite):
    """Readers."""
