"""Fields of version 2.0: schedulers and decoders for all types that the version supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.lance.logical.fields import make_field

__all__ = ["make_field"]

load_at_first_use(
    __name__,
    {
        "make_field": "fields",
    },
)
