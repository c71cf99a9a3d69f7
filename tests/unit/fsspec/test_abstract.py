"""fsspec's own suites, whole: over memory, files, and two implementations of S3."""

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem, LocalFileSystem, MemoryFileSystem, S3FileSystem
from aioprefetch.testing import CountingS3Server
from tests.profile import chosen
from tests.stores.rclone_server import RcloneS3Server

pytestmark = pytest.mark.full


class Fixtures(AbstractFixtures):  # type: ignore[misc]
    """Paths have slashes; directories come and go with what is in them."""

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return posixpath.join

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class OverMemory(Fixtures):
    @pytest.fixture
    def fs(self) -> Iterator[AioPrefetchFileSystem]:
        fs = MemoryFileSystem()
        yield fs
        fs.close()

    @pytest.fixture
    def fs_path(self, random_name: Callable[[], str]) -> str:
        return f"{random_name()}/below"


class OverAnOperator(Fixtures):
    """Keys without anything before them."""

    @pytest.fixture
    def fs(self, random_name: Callable[[], str]) -> Iterator[AioPrefetchFileSystem]:
        fs = AioPrefetchFileSystem(ap.Operator.from_uri(f"memory://{random_name()}"))
        yield fs
        fs.close()

    @pytest.fixture
    def fs_path(self) -> str:
        return ""


class OverFiles(Fixtures):
    @pytest.fixture
    def fs(self) -> Iterator[AioPrefetchFileSystem]:
        fs = LocalFileSystem()
        yield fs
        fs.close()

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        (tmp_path / "remote").mkdir()
        return str(tmp_path / "remote")

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return True


class OverServer(Fixtures):
    """A bucket of the server, which a subclass names, by s3fs's words."""

    @pytest.fixture
    def fs(self, server: CountingS3Server | RcloneS3Server) -> Iterator[AioPrefetchFileSystem]:
        fs = S3FileSystem(
            key=server.access_key_id,
            secret=server.secret_access_key,
            endpoint_url=server.endpoint_url,
            client_kwargs={"region_name": server.region},
        )
        yield fs
        fs.close()

    @pytest.fixture
    def fs_path(self, server: CountingS3Server | RcloneS3Server, random_name: Callable[[], str]) -> str:
        server.create_bucket(bucket := random_name())
        return bucket


class OverMoto(OverServer):
    @pytest.fixture
    def server(self, s3_server: CountingS3Server) -> CountingS3Server:
        return s3_server


class OverRclone(OverServer):
    @pytest.fixture
    def server(self, rclone_server: RcloneS3Server) -> RcloneS3Server:
        return rclone_server


STORES: tuple[Any, ...] = (OverMemory, OverAnOperator, OverFiles, OverMoto, OverRclone)
SMALL: tuple[Any, ...] = (AbstractOpenTests, AbstractPipeTests)
LARGE: tuple[Any, ...] = (AbstractCopyTests, AbstractGetTests, AbstractPutTests)

# The large suites take minutes on a server: all of them there under ``search``, and on moto one or two otherwise.
ON_HAND: tuple[Any, ...] = (OverAnOperator, OverFiles)
COPY: tuple[tuple[Any, Any], ...] = ((AbstractCopyTests, OverMoto), (AbstractPutTests, OverMoto))

# One class for each suite and store, as pytest wants them.
for suite, fixtures in (
    *((suite, store) for suite in SMALL for store in STORES),
    *((suite, store) for suite in LARGE for store in chosen(quick=ON_HAND, full=(OverMemory, *ON_HAND), search=STORES)),
    *((suite, store) for suite, store in chosen(quick=COPY[:1], full=COPY, search=())),
):
    name = f"Test{suite.__name__.removeprefix('Abstract').removesuffix('Tests')}{fixtures.__name__}"
    globals()[name] = type(name, (fixtures, suite), {"__module__": __name__})
