"""The identity of a block on disk: the name of its file, and the identity in the file's header. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from aioprefetch.blocks.spill.entry import FORMAT_VERSION, HEADER_BYTES_MAX, MAGIC, SUFFIX, header_length
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import BlockGrid

# The end of the names in format version 1. Such files are removed unread.
OLD_SUFFIX = ".block"

_NONE = b"\xff\xff\xff\xff"
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class BlockKey:
    """The file of one block: its name, the identity in its header, the length of that, and the size of its data."""

    name: str
    identity: bytes
    header_bytes: int
    data_bytes: int

    @property
    def file_bytes(self) -> int:
        """The length of the file in bytes."""
        return self.header_bytes + self.data_bytes


class FileIdentity:
    """The common identity of the blocks of one version of an object on one grid. ``key`` adds the number of a block.

    ``namespace`` holds the store and the principal, ``tenant`` a separation that the user configures. The names of
    files are hashes and show none of it. A length stands before each part, so that different identities never have
    the same encoding.
    """

    __slots__ = ("_encoded", "_grid", "_hashed")

    def __init__(
        self,
        *,
        tenant: str,
        namespace: Sequence[str],
        path: str,
        version: str | None,
        etag: str | None,
        size: int,
        block_bytes: int,
    ) -> None:
        parts = [_text(tenant), len(namespace).to_bytes(4, "big"), *map(_text, namespace)]
        parts += [_text(path), _text(version), _text(etag), size.to_bytes(8, "big"), block_bytes.to_bytes(8, "big")]
        self._encoded = b"".join(parts)
        self._hashed = hashlib.sha256(MAGIC + FORMAT_VERSION.to_bytes(2, "big") + self._encoded)
        self._grid = BlockGrid(size, block_bytes)

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self._grid.size

    def name(self, index: int) -> str:
        """The name of the file of block ``index``."""
        hashed = self._hashed.copy()
        hashed.update(index.to_bytes(8, "big"))
        return hashed.hexdigest() + SUFFIX

    def key(self, index: int) -> BlockKey | None:
        """The key of block ``index``, ``None`` when its header would be too long for a file."""
        start, end = self._grid.bounds(index)
        identity, data_bytes = self._encoded + index.to_bytes(8, "big"), end - start
        header_bytes = header_length(identity, b"", data_bytes)
        if header_bytes > HEADER_BYTES_MAX:
            return None
        return BlockKey(self.name(index), identity, header_bytes, data_bytes)


def _text(text: str | None) -> bytes:
    if text is None:
        return _NONE
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(4, "big") + data


def is_block_name(name: str, suffix: str = SUFFIX) -> bool:
    """Whether a name is that of a block file."""
    return len(name) == 64 + len(suffix) and name.endswith(suffix) and _HEX.issuperset(name[:64])


def is_old_name(name: str) -> bool:
    """Whether a name is that of a block file of an earlier format version."""
    return is_block_name(name, OLD_SUFFIX)
