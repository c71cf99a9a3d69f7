"""JSON with a checksum, so that a truncated or edited object is recognised when it is read. Pure.

It stays JSON: ``{"crc32":"0a1b2c3d","body":…}``. The checksum covers the bytes of the body as they are written.
"""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.source.json_fields import integer, parsed

_BEGIN, _MIDDLE, _END = b'{"crc32":"', b'","body":', b"}\n"
_BODY = len(_BEGIN) + 8 + len(_MIDDLE)


def checksum(data: bytes | memoryview) -> str:
    """The checksum of bytes as eight hexadecimal digits."""
    return f"{crc32(data):08x}"


def to_bytes(value: Any) -> bytes:
    """JSON without spaces, with fields in their given order; ASCII, so that any key of any store is kept."""
    return json.dumps(value, separators=(",", ":")).encode()


def seal(body: Any) -> tuple[bytes, str]:
    """The bytes to write, and the checksum in them."""
    data = to_bytes(body)
    crc = checksum(data)
    return b"".join((_BEGIN, crc.encode(), _MIDDLE, data, _END)), crc


def unseal(sealed: bytes, *, path: str) -> tuple[Any, str]:
    """The body and its checksum. ``UntrustedMetadata`` for bytes that ``seal`` did not write."""
    data = sealed[_BODY : -len(_END)]
    crc = checksum(data)
    if sealed[:_BODY] != b"".join((_BEGIN, crc.encode(), _MIDDLE)) or not sealed.endswith(_END):
        raise damaged("it was cut short or edited: its checksum does not fit", path)
    try:
        return parsed(data), crc
    except ValueError as error:
        raise damaged("it holds no JSON, although its checksum fits", path) from error


def check_version(fields: Any, version: int, *, path: str) -> None:
    """``Unsupported`` for the format of a newer version of aioprefetch, ``UntrustedMetadata`` without a format."""
    try:
        stored = integer(fields.get("v") if isinstance(fields, dict) else None, 1)
    except ValueError as error:
        raise damaged(f"it has no version of a format: {error}", path) from error
    if stored > version:
        raise Unsupported(
            f"it is of format {stored}, and this version of aioprefetch reads formats up to {version}: update it",
            operation="read_state",
            path=path,
        )


def damaged(why: str, path: str) -> UntrustedMetadata:
    """The error for a damaged state. It names the remedy: the state never guesses, and never starts again by itself."""
    return UntrustedMetadata(
        f"the source's state is damaged: {why}. Put the object back from a copy; or give another state location and"
        " another checkpoint, which reads everything again",
        operation="read_state",
        path=path,
    )
