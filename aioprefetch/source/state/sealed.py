"""JSON with a checksum: an object that was cut short or edited is recognised when it is read. Pure.

It stays JSON: ``{"crc32":"0a1b2c3d","body":…}``. The checksum is of the bytes of the body as they are written.
"""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.json_fields import parsed

_BEGIN, _MIDDLE, _END = b'{"crc32":"', b'","body":', b"}\n"
_BODY = len(_BEGIN) + 8 + len(_MIDDLE)


def checksum(data: bytes | memoryview) -> str:
    """The checksum of bytes as eight hexadecimal digits."""
    return f"{crc32(data):08x}"


def to_bytes(value: Any) -> bytes:
    """JSON without spaces, in the order in which it is given; ASCII, so that any key of any store is kept."""
    return json.dumps(value, separators=(",", ":")).encode()


def seal(body: Any) -> tuple[bytes, str]:
    """The bytes to write, and the checksum that is in them."""
    data = to_bytes(body)
    crc = checksum(data)
    return b"".join((_BEGIN, crc.encode(), _MIDDLE, data, _END)), crc


def unseal(sealed: bytes, *, path: str) -> tuple[Any, str]:
    """The body and its checksum. ``UntrustedMetadata`` for anything but what ``seal`` wrote."""
    data = sealed[_BODY : -len(_END)]
    crc = checksum(data)
    if sealed[:_BODY] != b"".join((_BEGIN, crc.encode(), _MIDDLE)) or not sealed.endswith(_END):
        raise damaged("it was cut short or edited: its checksum does not fit", path)
    try:
        return parsed(data), crc
    except ValueError as error:
        raise damaged("it holds no JSON, although its checksum fits", path) from error


def damaged(why: str, path: str) -> UntrustedMetadata:
    """The error for a state that is not whole. It says what there is to do: nothing is guessed, nothing starts anew."""
    return UntrustedMetadata(
        f"the source's state is damaged: {why}. Put the object back from a copy; or give another state location and"
        " another checkpoint, which reads everything again",
        operation="read_state",
        path=path,
    )
