"""The format of a cache entry: a checked header, then the object's bytes. Pure, no I/O.

::

    8 bytes   magic
    2 bytes   format version
    4 bytes   length of the JSON header
    4 bytes   CRC32 of everything above and of the JSON header
    ...       JSON header: identity, metadata, CRC32 of the data
    ...       the data, exactly ``total`` bytes, up to the end of the file

Nothing of an entry is believed before all of it fits together: magic, version, lengths, checksum, the identity that
was asked for, and the size of the file. The checksums guard against accidents; who may write into the cache's store
is trusted. The data's own checksum is verified at its first use in each process, and whenever the whole object is read.

An entry's name has no text of the user in it: two digests of length-prefixed parts, the first of the *slot* (what can
be asked for: namespace, path, version), the second of the full identity (with the ETag).
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from datetime import datetime
from zlib import crc32

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.values import ReadHead

MAGIC = b"aioprfch"
FORMAT_VERSION = 1
# Prefix and JSON together. A longer header is neither written nor read.
HEADER_BYTES_MAX = 16 << 10
FOLDER = "objects/"

_PREFIX = struct.Struct(">8sHII")
_CHECKED_BYTES = _PREFIX.size - 4
_NAME = re.compile(r"objects/[0-9a-f]{2}/([0-9a-f]{64})-[0-9a-f]{64}")


def name_part(*parts: str | None) -> str:
    """Hex SHA-256 of the parts, each with its length: ``("ab", "c")`` is not ``("a", "bc")``, nor ``None`` ``""``."""
    hashed = hashlib.sha256()
    for part in parts:
        if part is None:
            hashed.update(b"\0")
        else:
            data = part.encode("utf-8", "surrogatepass")
            hashed.update(b"\1" + len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


def slot_of(namespace: tuple[str, ...], path: str, asked_version: str | None) -> str:
    """The digest of what a read asks for: at most one entry stands in a slot."""
    return name_part("slot", str(len(namespace)), *namespace, path, asked_version)


def slot_in(name: str) -> str | None:
    """The slot of an entry by its name in the cache; ``None`` for a name that is not ours."""
    match = _NAME.fullmatch(name)
    return match[1] if match and name[len(FOLDER) :].startswith(match[1][:2]) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryHeader:
    """What an entry says of itself. ``asked_version`` is the version id in the request, ``version`` in the response."""

    namespace: tuple[str, ...]
    path: str
    asked_version: str | None
    etag: str
    version: str | None
    total: int
    last_modified: datetime | None
    content_type: str | None
    filled_at: datetime
    data_crc: int

    @property
    def slot(self) -> str:
        """The slot in which the entry stands."""
        return slot_of(self.namespace, self.path, self.asked_version)

    @property
    def name(self) -> str:
        """The entry's name in the cache, the slot's first byte as a folder."""
        slot = self.slot
        identity = name_part(
            "identity",
            str(len(self.namespace)),
            *self.namespace,
            self.path,
            self.asked_version,
            self.version,
            self.etag,
        )
        return f"{FOLDER}{slot[:2]}/{slot}-{identity}"

    def head(self, start: int, end: int) -> ReadHead:
        """The head of the response that holds ``[start, end)`` of the object."""
        return ReadHead(
            start=start,
            size=end - start,
            total=self.total,
            etag=self.etag,
            version=self.version,
            last_modified=self.last_modified,
            content_type=self.content_type,
        )


def encode_header(header: EntryHeader) -> bytes | None:
    """The bytes before the data, ``None`` when they would be more than ``HEADER_BYTES_MAX``."""
    fields = {
        "namespace": list(header.namespace),
        "path": header.path,
        "asked_version": header.asked_version,
        "etag": header.etag,
        "version": header.version,
        "total": header.total,
        "last_modified": header.last_modified.isoformat() if header.last_modified else None,
        "content_type": header.content_type,
        "filled_at": header.filled_at.isoformat(timespec="microseconds"),
        "data_crc": header.data_crc,
    }
    text = json.dumps(fields, separators=(",", ":")).encode("ascii")
    if _PREFIX.size + len(text) > HEADER_BYTES_MAX:
        return None
    checked = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(text), 0)[:_CHECKED_BYTES]
    return checked + crc32(text, crc32(checked)).to_bytes(4, "big") + text


def decode_header(raw: bytes, *, name: str, slot: str, file_bytes: int) -> tuple[EntryHeader, int]:
    """The header at the beginning of an entry, and its length in bytes.

    ``raw`` is the beginning of the file (``HEADER_BYTES_MAX`` bytes, or all there is), ``slot`` is what was asked for,
    ``file_bytes`` the size of the file. Raises ``UntrustedMetadata`` unless everything fits.
    """
    if len(raw) < _PREFIX.size:
        raise _distrust(name, f"{len(raw)} bytes hold no header")
    magic, version, text_bytes, checksum = _PREFIX.unpack_from(raw)
    if magic != MAGIC:
        raise _distrust(name, "it does not begin with the magic bytes")
    if version != FORMAT_VERSION:
        raise _distrust(name, f"format version {version} is not {FORMAT_VERSION}")
    header_bytes = _PREFIX.size + text_bytes
    if header_bytes > min(HEADER_BYTES_MAX, len(raw)):
        raise _distrust(name, f"a header of {header_bytes} bytes is too long")
    text = raw[_PREFIX.size : header_bytes]
    if crc32(text, crc32(raw[:_CHECKED_BYTES])) != checksum:
        raise _distrust(name, "the checksum of the header is wrong")
    header = _parse(text, name)
    if header.slot != slot or header.name != name:
        raise _distrust(name, "it is the entry of another object")
    if file_bytes != header_bytes + header.total:
        raise _distrust(name, f"it has {file_bytes} bytes where {header_bytes + header.total} are due")
    return header, header_bytes


def _parse(text: bytes, name: str) -> EntryHeader:
    try:
        fields = json.loads(text)
        namespace = fields["namespace"]
        if not isinstance(namespace, list):
            raise TypeError("namespace is no list")
        modified = _text_or_none(fields["last_modified"])
        return EntryHeader(
            namespace=tuple(_text(part) for part in namespace),
            path=_text(fields["path"]),
            asked_version=_text_or_none(fields["asked_version"]),
            etag=_text(fields["etag"]),
            version=_text_or_none(fields["version"]),
            total=_count(fields["total"]),
            last_modified=None if modified is None else datetime.fromisoformat(modified),
            content_type=_text_or_none(fields["content_type"]),
            filled_at=datetime.fromisoformat(_text(fields["filled_at"])),
            data_crc=_count(fields["data_crc"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _distrust(name, f"the header cannot be understood: {type(error).__name__}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("no count")
    return value


def _distrust(name: str, why: str) -> UntrustedMetadata:
    return UntrustedMetadata(f"a cache entry cannot be used: {why}", operation="read", path=name)
