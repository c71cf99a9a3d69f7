"""``with`` and ``async with`` for what is closed at the end of its block."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from aioprefetch.errors import InvalidType


def refused(use: str, advice: str) -> Any:
    """A method that Python looks for in each ``use``, such as ``for``, of a class that has no such one.

    ``InvalidType``, which is a ``TypeError``, with what to write instead. Type checkers find this by themselves: hide
    the method from them.
    """

    def refuse(self: object, *_: object) -> NoReturn:
        raise InvalidType(f"{use!r} does not work with a {type(self).__name__}: {advice}")

    return refuse


# The way of code without an event loop.
WITHOUT_AWAIT = "without await there are aioprefetch.sync.BlockingOperator(op) and aioprefetch.sync.open(url)"


class Closing:
    """Its block ends with ``close``."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = refused("async with", "write 'with'; with await there is aioprefetch.Operator")

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
    if not TYPE_CHECKING:
        __enter__ = __exit__ = refused("with", f"write 'async with'; {WITHOUT_AWAIT}")

    async def aclose(self) -> None:
        """End its use."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
