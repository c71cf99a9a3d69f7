"""A runtime, a root with a file in it, and the accessor over that root."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs import Fs
from tests.probes.descriptors import descriptors_below


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root: beside it lies what must stay unread."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.fixture
def accessor(root: Path, runtime: Runtime) -> Accessor:
    """The live service over the root."""
    return Fs(str(root)).build(runtime)


@pytest.fixture
def descriptors(root: Path) -> Callable[[], list[str]]:
    """A function that tells which files and directories at or below the root this process has open."""

    return lambda: descriptors_below(root)
