"""Copies a source file to where it is to be moved, and never over another file that is there."""

from __future__ import annotations

from aioprefetch.errors import AlreadyExists, NotFound
from aioprefetch.operator.operator import Operator

# Two objects of one size are compared in pieces of so many bytes.
PIECE_BYTES = 4 << 20


async def copy_to_absent(operator: Operator, source: str, target: str) -> None:
    """Copy an object where there is none; the same one is there already after a crash, and that is well.

    ``AlreadyExists`` where there is another one. Stores copy without conditions: one that is written between the look
    and the copy is replaced.
    """
    try:
        await operator.stat(target)
    except NotFound:
        await operator.copy(source, target)
        return
    if not await _are_same(operator, source, target):
        raise AlreadyExists(
            f"it is not moved to {target!r}, where another file is: it stays where it is. Move that one away, or delete"
            " one of the two",
            operation="clean_source",
            path=source,
        )


async def _are_same(operator: Operator, source: str, target: str) -> bool:
    """Whether two objects have the same content. A copy may have another ETag."""
    one, other = await operator.stat(source), await operator.stat(target)
    if one.size is None or one.size != other.size:
        return False
    if one.etag is not None and one.etag == other.etag:
        return True
    for offset in range(0, one.size, PIECE_BYTES):
        pieces = [
            await operator.read(path, offset=offset, size=PIECE_BYTES, if_match=found.etag)
            for path, found in ((source, one), (target, other))
        ]
        if pieces[0] != pieces[1]:
            return False
    return True
