"""``with`` and ``async with`` for what is closed at the end of its block."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Its block ends with ``close``."""

    __slots__ = ()

    def close(self) -> None:
        """End its use."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClosing:
    """Its block ends with ``aclose``."""

    __slots__ = ()

    async def aclose(self) -> None:
        """End its use."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
