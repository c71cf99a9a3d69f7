"""What the service needs of an answer, whichever transport brings it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aioprefetch.services.http.urls import Origin


class Answer(Protocol):
    """An answer whose head has come.

    ``headers`` ignores case. ``redirected_to`` is the origin that sent it, if that is not the base's.
    """

    status: int
    headers: Mapping[str, str]
    redirected_to: Origin | None

    async def read_chunk(self) -> bytes:
        """The next bytes of the body, ``b""`` at its end. When it fails or is cancelled the connection is closed."""
        ...

    def close(self) -> None:
        """Give the connection back at once, broken off when the body was not read to its end. May be called twice."""
        ...
