"""The format of an entry file: a checked header, then data with a checksum for each piece; and the index of entries.

Pure, no I/O. The index holds the entries of a cache in the order in which they were last read, and their bytes. This is
the format::

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
from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile
from typing import Generic, TypeVar
from zlib import crc32

from aioprefetch.lean_dataclass import dataclass

T = TypeVar("T")

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


# --- the index --------------------------------------------------------------------------------------------------------


class LruIndex(Generic[T]):
    """Names with their sizes and values, the least recently read first. ``in`` may be used from any thread.

    ``used_at`` is wall-clock time in seconds. An entry takes its place by the time at which it was last read, not by
    the time at which it was written or listed.
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self._entries: OrderedDict[str, tuple[float, int, T]] = OrderedDict()

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> T | None:
        """The value of an entry. Not a use of it."""
        entry = self._entries.get(name)
        return None if entry is None else entry[2]

    def size(self, name: str) -> int:
        """Bytes of an entry, 0 for an unknown one."""
        entry = self._entries.get(name)
        return 0 if entry is None else entry[1]

    def items(self) -> list[tuple[str, T]]:
        """Names and values, the least recently read first."""
        return [(name, value) for name, (_, _, value) in self._entries.items()]

    def add(self, name: str, size_bytes: int, value: T, *, used_at: float) -> T | None:
        """Add an entry that was last read at ``used_at``. Returns the value that it replaces."""
        replaced = self.discard(name)
        entries = self._entries
        if not entries or used_at < next(iter(entries.values()))[0]:
            later: list[str] = []
            entries[name] = (used_at, size_bytes, value)
            entries.move_to_end(name, last=False)
        else:
            later = [other for other, _ in takewhile(lambda item: item[1][0] > used_at, reversed(entries.items()))]
            entries[name] = (used_at, size_bytes, value)
            for other in reversed(later):
                entries.move_to_end(other)
        self.total_bytes += size_bytes
        return replaced

    def use(self, name: str, used_at: float) -> None:
        """An entry was read. An unknown name is ignored."""
        entry = self._entries.get(name)
        if entry is not None:
            last = entry if len(self._entries) == 1 else next(reversed(self._entries.values()))
            self._entries[name] = (max(used_at, last[0]), entry[1], entry[2])
            self._entries.move_to_end(name)

    def discard(self, name: str) -> T | None:
        """Remove an entry and return its value. An unknown name is ignored."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        self.total_bytes -= entry[1]
        return entry[2]

    def victims(self, need_bytes: int, *, used_before: float = float("inf")) -> list[str]:
        """The entries to remove so that ``need_bytes`` are freed, or all there are, of those read before a time."""
        names: list[str] = []
        for name, (used_at, size_bytes, _) in self._entries.items():
            if need_bytes <= 0 or used_at >= used_before:
                break
            names.append(name)
            need_bytes -= size_bytes
        return names

    def differing(self, names: Iterable[str]) -> tuple[list[str], list[str]]:
        """Those of ``names`` that are not in the index, and those in the index that are not among ``names``."""
        listed = set(names)
        return (
            [name for name in listed if name not in self._entries],
            [name for name in self._entries if name not in listed],
        )
