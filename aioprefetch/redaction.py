"""What no message may hold: credentials in URLs, signatures, and characters that forge a line of a log. Pure."""

from __future__ import annotations

import re

_URL_QUERY = re.compile(r"(\w+://)(?:[^\s/?#]*@)?([^\s?#]*)[?#][^\s]*")
_URL_USERINFO = re.compile(r"(\w+://)[^\s/?#]+@")
# What a signed URL is worth, wherever a store repeats it.
_SIGNED = re.compile(r"(x-amz-(?:signature|credential|security-token)(?:%3d|\W{1,4}))[^\s&<>\"']+", re.IGNORECASE)


def redact(text: str) -> str:
    """``text`` without what may be a bearer credential: query and user of each URL, and any signature."""
    return _SIGNED.sub(r"\1***", _URL_USERINFO.sub(r"\1", _URL_QUERY.sub(r"\1\2", text)))


def printable(path: str) -> str:
    """A path as one line of text: control characters escaped, so that a key cannot forge a log line."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in path)
