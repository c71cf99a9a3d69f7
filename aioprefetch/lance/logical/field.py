"""What one top-level field of a file gives the decode loop: rows of an Arrow array, page by page.

The document's ``LogicalPageDecoder`` and ``NextDecodeTask``, for one field. All versions of the format share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from aioprefetch.scheduler.pages import PendingRead

PageT_contra = TypeVar("PageT_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """Rows of one field to decode: ``decode`` runs once, on any thread, and touches nothing that the loop may change.

    ``spent``: the reads of every page that ended with these rows. They are released when the batch is out of the
    consumer's hands. ``is_cheap``: slicing alone, not worth another thread.
    """

    decode: Callable[[], pa.Array]
    spent: Sequence[PendingRead] = ()
    is_cheap: bool = False


class FieldDecoder(Protocol[PageT_contra]):
    """The pages of one field in row order. Stateful: each call speaks of the *next* rows; belongs to the loop's thread.

    ``rows`` never goes beyond the pages that were accepted.
    """

    def accept(self, page: PageT_contra) -> None:
        """A page that was scheduled, behind those that came before."""
        ...

    def want(self, rows: int) -> None:
        """Want every read that is known to be needed for the next ``rows`` rows. Does not wait."""
        ...

    async def wait(self, rows: int) -> None:
        """Wait until the next ``rows`` rows can be drained. Raises what a read failed with, or ``UntrustedMetadata``.

        A cancelled wait leaves everything as it is.
        """
        ...

    def loaded_rows(self, most: int) -> int:
        """How many of the next rows, up to ``most``, could be drained at once without waiting."""
        ...

    def size_bytes(self, rows: int) -> int:
        """About how much Arrow memory the next ``rows`` rows take, which are loaded. Grows with ``rows``."""
        ...

    def drain(self, rows: int) -> ArrayTask:
        """Take the next ``rows`` rows, which are loaded."""
        ...

    def close(self) -> None:
        """Release every page that was not drained."""
        ...
