"""What each compression makes of bytes: gzip, zstd, and both forms of snappy that Hadoop and others write."""

import gzip
import importlib
import struct
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
zstd: Any = importlib.import_module(ZSTD)

_SNAPPY = pa.Codec("snappy")


def hadoop_snappy(data: bytes, block: int = 1000, chunk: int = 300) -> bytes:
    """As Hadoop's SnappyCodec writes it: blocks of chunks."""
    out = b""
    for start in range(0, len(data), block):
        part = data[start : start + block]
        out += struct.pack(">I", len(part))
        for at in range(0, len(part), chunk):
            packed = _SNAPPY.compress(part[at : at + chunk], asbytes=True)
            out += struct.pack(">I", len(packed)) + packed
    return out


def framed_snappy(data: bytes) -> bytes:
    """The framing format, with padding, a skippable chunk and chunks that are not compressed."""
    out = b"\xff\x06\x00\x00sNaPpY" + b"\xfe\x02\x00\x00ab"
    for number, start in enumerate(range(0, len(data), 700)):
        part = data[start : start + 700]
        body = bytes(4) + (part if number % 2 else _SNAPPY.compress(part, asbytes=True))
        out += bytes([number % 2]) + struct.pack("<I", len(body))[:3] + body + b"\x80\x01\x00\x00z"
    return out


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstd.compress,
    "snappy": hadoop_snappy,
    "framed": framed_snappy,
}
SUFFIXES = {"gzip": ".gz", "zstd": ".zst", "snappy": ".snappy", "framed": ".snappy"}
