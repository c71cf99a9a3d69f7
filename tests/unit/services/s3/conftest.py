"""What the tests of the S3 service share: a clean environment, a runtime, and accessors for the test servers."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.runtime.runtime import Runtime
from tests.stores.rclone_server import RcloneS3Server
from tests.unit.services.s3.stores import Store, open_store

RCLONE_BUCKET = "unit-s3"


@pytest.fixture(autouse=True)
def no_ambient_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No identity, endpoint or region of this machine: botocore finds what a test gives it, and nothing else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def store(runtime: Runtime) -> Callable[..., Store]:
    """Opens a bucket of a test server: ``store(server, bucket, **options)``."""
    return lambda server, bucket="bucket", **options: open_store(server, bucket, runtime, **options)


@pytest.fixture(scope="session")
def caching_rclone() -> Iterator[RcloneS3Server]:
    """One for the session, with one bucket in it."""
    with RcloneS3Server() as server:
        server.create_bucket(RCLONE_BUCKET)
        yield server


@pytest.fixture
def rclone(caching_rclone: RcloneS3Server, store: Callable[..., Store], random_name: Callable[[], str]) -> Store:
    """A root of its own in the bucket on rclone."""
    return store(caching_rclone, RCLONE_BUCKET, prefix=random_name())


@pytest.fixture(params=["moto", "rclone"])
def bucket(request: pytest.FixtureRequest) -> Store:
    """An empty place on moto and on rclone."""
    found: Store = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def moto(s3_server: Any, store: Callable[..., Store], random_name: Callable[[], str]) -> Store:
    """A new bucket on moto, with its record of requests empty."""
    made = store(s3_server, random_name())
    await made.create_bucket()
    s3_server.reset()
    return made
