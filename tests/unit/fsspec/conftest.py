"""What the tests of the file system share: its protocols, a store in memory, a bucket of the counting server."""

from collections.abc import Callable, Iterator

import pytest

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem
from aioprefetch.testing import CountingS3Server, content
from tests.unit.fsspec.s3_words import Bucket


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    """Our protocols, also where the source stands on the path and the package is not installed."""
    ap.fsspec.register()


@pytest.fixture(scope="session")
def data() -> bytes:
    """The object of the tests."""
    return content(10_000)


@pytest.fixture
def fs(random_name: Callable[[], str], data: bytes) -> Iterator[AioPrefetchFileSystem]:
    """A file system over a memory of its own, with a few objects."""
    fs = AioPrefetchFileSystem(ap.Operator.from_uri(f"memory://{random_name()}"))
    fs.pipe({"a": data, "d/b": b"bb", "d/e/c": b"ccc", "d/e/f/g": b"", "x[1]": b"1"})
    yield fs
    fs.close()


@pytest.fixture
def bucket(s3_server: CountingS3Server, random_name: Callable[[], str], data: bytes) -> Iterator[Bucket]:
    """A bucket with three objects."""
    bucket = Bucket(s3_server, random_name())
    bucket.fs.pipe({f"{bucket.name}/{key}": data for key in ("d/a", "d/b", "top")})
    bucket.requests()
    yield bucket
    bucket.fs.close()
