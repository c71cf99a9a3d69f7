"""A store with obspec's methods that needs no package, and that tests can make lie."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

WHEN = datetime(2026, 1, 2, tzinfo=UTC)


class Result:
    """A response to a GET. `closed` counts the ends of its streams."""

    def __init__(
        self, meta: Any, bounds: Any, chunks: list[bytes], attributes: Mapping[str, str] | None = None
    ) -> None:
        self.meta = meta
        self.range = bounds
        self.attributes = attributes or {}
        self.chunks = chunks
        self.closed = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self.chunks:
                await asyncio.sleep(0)
                yield chunk
        finally:
            self.closed += 1


class GetOnly:
    """One object, `get_async` and nothing else. `falsify` may change each response."""

    def __init__(self, data: bytes = b"0123456789", etag: str | None = "e-1") -> None:
        self.data = data
        self.etag = etag
        self.options: list[dict[str, Any]] = []
        self.results: list[Result] = []
        self.falsify: Callable[[Result], None] = lambda result: None

    def meta(self, path: str) -> dict[str, Any]:
        """What the store says of its object."""
        return {"path": path, "size": len(self.data), "e_tag": self.etag, "version": None, "last_modified": WHEN}

    def bounds(self, wanted: Any) -> tuple[int, int]:
        """The range that is meant."""
        size = len(self.data)
        if wanted is None:
            return 0, size
        if isinstance(wanted, dict):
            return (wanted["offset"], size) if "offset" in wanted else (max(0, size - wanted["suffix"]), size)
        return wanted[0], min(wanted[1], size)

    async def get_async(self, path: str, *, options: dict[str, Any] | None = None) -> Result:
        """As obspec has it."""
        self.options.append(dict(options or {}))
        start, end = self.bounds((options or {}).get("range"))
        middle = (start + end) // 2
        result = Result(self.meta(path), (start, end), [self.data[start:middle], b"", self.data[middle:end]])
        self.falsify(result)
        self.results.append(result)
        return result
