"""The format of an entry file: a checked header, then data with a checksum for each piece. Pure, no I/O.

::

    8 bytes   magic
    2 bytes   format version
    4 bytes   length of the header
    4 bytes   length of the identity
    4 bytes   length of the facts
    8 bytes   length of the data
    4 bytes   length of a piece
    ...       the identity: which data these are
    ...       the facts: the values stored beside the data
    ...       4 bytes for each piece of the data: its CRC32
    4 bytes   CRC32 of everything above
    ...       the data, up to the end of the file

Integers are big endian. A reader of an entry knows its identity, which is compared and never parsed, and the true size
of the file, which every claimed length has to fit. Anything else is a ``BadEntry``, which is a miss.

Each piece has a checksum of its own, so that a range of an entry is verified by the pieces it touches. CRC32 is in the
standard library, detects every burst error of up to 32 bits, and costs 0.2 ms for a MiB. It guards against accidents:
a user who may write into the directory or store is trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from zlib import crc32

from aioprefetch.lean_dataclass import dataclass

MAGIC = b"aiopfent"
FORMAT_VERSION = 2
# The smallest range that is read and verified. Smaller pieces need longer headers; larger ones make a small hit slow.
PIECE_BYTES = 256 << 10
# Entries with a longer header (a path of many thousands of characters, an object of 4 GiB) are not stored.
HEADER_BYTES_MAX = 64 << 10
# The end of the name of every entry file of this format version.
SUFFIX = ".entry"

_PREFIX = struct.Struct(">8sHIIIQI")
_SUM = struct.Struct(">I")


class BadEntry(Exception):
    """A file is not the entry that was looked up, whole and undamaged. Never leaves the caches: it is a miss."""


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """The verified header of an entry file: facts, position and length of the data, the checksum of each piece."""

    facts: bytes
    data_offset: int
    data_bytes: int
    checksums: tuple[int, ...]

    def pieces(self, start: int, end: int) -> tuple[int, int]:
        """The smallest range of whole pieces that holds the bytes ``[start, end)`` of the data."""
        return aligned(start, end, self.data_bytes)

    def verify(self, start: int, *parts: memoryview) -> None:
        """Check whole pieces that were read at ``start``, a multiple of ``PIECE_BYTES``, however they are divided.

        Raises ``BadEntry``.
        """
        for number, checksum in enumerate(checksums(parts), start // PIECE_BYTES):
            if checksum != self.checksums[number]:
                first = number * PIECE_BYTES
                end = min(first + PIECE_BYTES, self.data_bytes)
                raise BadEntry(f"the checksum of its bytes [{first}, {end}) is wrong")


def aligned(start: int, end: int, data_bytes: int) -> tuple[int, int]:
    """The smallest range of whole pieces of ``data_bytes`` bytes that holds ``[start, end)``."""
    return start - start % PIECE_BYTES, min(data_bytes, -(-end // PIECE_BYTES) * PIECE_BYTES)


def header_length(identity: bytes, facts: bytes, data_bytes: int) -> int:
    """Bytes of the header before ``data_bytes`` bytes of data."""
    return _PREFIX.size + len(identity) + len(facts) + _SUM.size * (-(-data_bytes // PIECE_BYTES) + 1)


def checksums(parts: Iterable[memoryview]) -> tuple[int, ...]:
    """The CRC32 of each piece of the data, however the data is divided into parts."""
    found: list[int] = []
    checksum, room = 0, PIECE_BYTES
    for part in parts:
        position = 0
        while position < len(part):
            taken = part[position : position + room]
            checksum = crc32(taken, checksum)
            position, room = position + len(taken), room - len(taken)
            if not room:
                found.append(checksum)
                checksum, room = 0, PIECE_BYTES
    if room < PIECE_BYTES:
        found.append(checksum)
    return tuple(found)


def encode_header(identity: bytes, facts: bytes, data_bytes: int, sums: tuple[int, ...]) -> bytes:
    """The bytes before the data, ``sums`` being the checksums of its pieces."""
    lengths = (header_length(identity, facts, data_bytes), len(identity), len(facts), data_bytes, PIECE_BYTES)
    header = _PREFIX.pack(MAGIC, FORMAT_VERSION, *lengths) + identity + facts + b"".join(map(_SUM.pack, sums))
    return header + _SUM.pack(crc32(header))


def claimed_length(raw: bytes | bytearray) -> int:
    """The length that the beginning of a file claims for its header, as far as it is possible; 0 if it is not."""
    if len(raw) < _PREFIX.size:
        return 0
    length = int.from_bytes(raw[10:14], "big")
    return length if length <= HEADER_BYTES_MAX else 0


def decode_header(raw: bytes | bytearray | memoryview, *, identity: bytes, file_bytes: int) -> EntryHeader:
    """The header at the beginning of a file of ``file_bytes`` bytes, of which ``raw`` is the beginning.

    Raises ``BadEntry`` unless it is the header of ``identity`` and everything fits together.
    """
    if raw[: len(MAGIC)] != MAGIC:
        raise BadEntry("it does not begin with the magic bytes")
    if len(raw) < _PREFIX.size:
        raise BadEntry(f"{len(raw)} bytes hold no header")
    _, version, header_bytes, identity_bytes, facts_bytes, data_bytes, piece_bytes = _PREFIX.unpack_from(raw)
    if version != FORMAT_VERSION:
        raise BadEntry(f"format version {version} is not {FORMAT_VERSION}")
    if header_bytes > min(HEADER_BYTES_MAX, len(raw)):
        raise BadEntry(f"a header of {header_bytes} bytes is too long")
    if header_bytes + data_bytes != file_bytes:
        raise BadEntry(f"it has {file_bytes} bytes, not the {header_bytes + data_bytes} of its header")
    facts_at = _PREFIX.size + len(identity)
    sums_at = facts_at + facts_bytes
    expected_bytes = sums_at + _SUM.size * (-(-data_bytes // PIECE_BYTES) + 1)
    if identity_bytes != len(identity) or raw[_PREFIX.size : facts_at] != identity:
        raise BadEntry("it is another entry")
    if (header_bytes, piece_bytes) != (expected_bytes, PIECE_BYTES):
        raise BadEntry("the lengths in its header do not fit together")
    sums_end = header_bytes - _SUM.size
    if crc32(raw[:sums_end]) != _SUM.unpack(raw[sums_end:header_bytes])[0]:
        raise BadEntry("the checksum of the header is wrong")
    sums = tuple(number for (number,) in _SUM.iter_unpack(raw[sums_at:sums_end]))
    return EntryHeader(bytes(raw[facts_at:sums_at]), header_bytes, data_bytes, sums)
