"""A runtime, and services of other distributions by their entry points."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from aioprefetch.operator import from_uri
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    """A runtime, closed after the test."""
    live = Runtime(RuntimeOptions())
    yield live
    await live.aclose()


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a distribution that has nothing but entry points, for the time of a test."""

    def install(**entries: str) -> None:
        folder = tmp_path / "toy_store-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-store\nVersion: 1.0\n")
        lines = "".join(f"{scheme} = {value}\n" for scheme, value in entries.items())
        (folder / "entry_points.txt").write_text(f"[{from_uri.ENTRY_POINTS}]\n{lines}")
        monkeypatch.syspath_prepend(tmp_path)

    from_uri._loaded.clear()
    yield install
    from_uri._loaded.clear()
