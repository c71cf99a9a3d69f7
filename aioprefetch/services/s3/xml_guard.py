"""XML from a store: the guard before every parser, and an error as a flat dictionary. Pure, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# The encodings in which a body is parsed: the declared one by us, and always UTF-8 by botocore.
_ENCODINGS = (None, "utf-8")
# Expat does not stop where a handler raises, so it is given no more than this beyond the place.
_PIECE_BYTES = 4096
# Expat looks at a comment from its beginning for each piece, so that a long one is not followed to its end.
PROLOG_BYTES_MAX = 64 << 10


class _Decided(Exception):
    """The part of a document in which its type may stand is over."""


def has_document_type(body: bytes | bytearray) -> bool:
    """Whether a document declares a type (``<!DOCTYPE``) or may do so. No response of S3 does.

    Entities, with which few bytes become megabytes, can only be declared there. The parser is asked and not the
    bytes, since these may be UTF-16. A type stands before the first element: no more of the body is looked at. Where
    none has begun within ``PROLOG_BYTES_MAX`` the rest may declare one, and the result is true.
    """
    return any(_declares_type(body, encoding) for encoding in _ENCODINGS)


def _declares_type(body: bytes | bytearray, encoding: str | None) -> bool:
    from xml.parsers import expat

    declares = False

    def begin_type(*_: object) -> None:
        nonlocal declares
        declares = True
        raise _Decided

    def begin_element(*_: object) -> None:
        raise _Decided

    parser = expat.ParserCreate(encoding)
    parser.StartDoctypeDeclHandler = begin_type
    parser.StartElementHandler = begin_element
    try:
        for start in range(0, min(len(body), PROLOG_BYTES_MAX), _PIECE_BYTES):
            parser.Parse(body[start : start + _PIECE_BYTES], False)
        if len(body) > PROLOG_BYTES_MAX:
            return True
        parser.Parse(b"", True)
    except (_Decided, expat.ExpatError, ValueError, LookupError):  # The last two for encodings that are not known.
        pass
    return declares


def parse_error(body: bytes) -> dict[str, str]:
    """The name and the text of each element below ``Error``; none if the body is not an error of S3."""
    if has_document_type(body):
        return {}
    from xml.etree import ElementTree as ET

    try:
        root = ET.fromstring(body)
    except (ET.ParseError, ValueError, LookupError):
        return {}
    error = root if _name(root) == "Error" else next((element for element in root if _name(element) == "Error"), None)
    return {} if error is None else {_name(element): (element.text or "").strip() for element in error}


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]
