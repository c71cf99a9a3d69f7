"""On a busy machine listing the directory takes long, and the next listing is put off: not in these tests."""

import pytest

from aioprefetch.blocks.spill import block_cache


@pytest.fixture(autouse=True)
def looks_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never put a listing off."""
    monkeypatch.setattr(block_cache, "LOOK_SECONDS_FREE", float("inf"))
