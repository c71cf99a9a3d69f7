"""On a busy machine a look at the directory takes long, and the next one is put off: not in these tests."""

import pytest

from aioprefetch.blocks.spill import block_cache


@pytest.fixture(autouse=True)
def looks_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every look that a test asks for find what is there."""
    monkeypatch.setattr(block_cache, "LOOK_SECONDS_FREE", float("inf"))
