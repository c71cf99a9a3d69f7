"""What the blocks of the documentation take for granted."""

import pytest

import aioprefetch as ap


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    """URLs of fsspec that are ours, also where the source stands on the path and the package is not installed."""
    ap.fsspec.register()
