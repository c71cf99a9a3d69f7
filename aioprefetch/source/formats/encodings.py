"""Text encodings: those whose bytes can be cut at line ends before decoding, and the conversion to UTF-8."""

from __future__ import annotations

import codecs
from functools import cache

import pyarrow as pa

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.formats.corruption import corrupt
from aioprefetch.source.formats.lines import RECORD_BYTES_MAX
from aioprefetch.source.options import FormatOptions

# Escape sequences change the meaning of later bytes, so a piece cannot be decoded by itself.
_STATEFUL = ("utf-7", "iso2022", "hz")
# Codecs of Python for names and literals, not for files.
_NO_FILES = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")
_LINE_ENDS = (None, "\n", "\r\n", "\r")
_EVERY_BYTE = bytes(range(256))

_BYTE_ORDER_MARKS = {"utf-16": (b"\xff\xfe", b"\xfe\xff"), "utf-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff")}
UTF8_MARK = b"\xef\xbb\xbf"


def codec_name(encoding: str) -> str:
    """Python's name of an encoding. ``ConfigInvalid`` for an unknown encoding."""
    try:
        codec = codecs.lookup(encoding)
    except LookupError:
        raise ConfigInvalid(
            f"encoding={encoding!r} is unknown: give one that Python has, such as utf-8, latin-1, cp1252 or utf-16",
            operation="read_items",
        ) from None
    if not getattr(codec, "_is_text_encoding", True) or codec.name in _NO_FILES:
        raise ConfigInvalid(f"encoding={encoding!r} is not a known encoding of text files", operation="read_items")
    return "utf-8" if codec.name == "utf-8-sig" else codec.name


def is_line_safe(options: FormatOptions) -> bool:
    """Whether a file can be cut at line ends before it is decoded: the searched bytes occur in no other text.

    For line ends that is so in every encoding that has them as in ASCII. A separator or a quote may be half of another
    character (``|`` in Shift-JIS), except in encodings like UTF-8, where no byte of ASCII is part of another character.
    """
    name = codec_name(options.encoding)
    if "\r\n".encode(name) != b"\r\n" or name.startswith(_STATEFUL):
        return False
    looks_for_more = options.multi_line or options.line_separator not in _LINE_ENDS
    return not looks_for_more or name == "utf-8" or _has_single_bytes(name)


@cache
def _has_single_bytes(name: str) -> bool:
    return len(_EVERY_BYTE.decode(name, "replace")) == len(_EVERY_BYTE)


def to_utf8(data: bytes, encoding: str, *, path: str, offset: int) -> bytes:
    """Whole lines of a line-safe encoding as valid UTF-8. ``offset`` is their position in the file."""
    if data.isascii() and encoding in ("utf-8", "ascii", "iso8859-1"):
        return data
    try:
        if encoding != "utf-8":
            return data.decode(encoding).encode()
        if not _is_utf8(data):
            data.decode()  # The error has the position.
    except UnicodeDecodeError as error:
        raise undecodable(error, encoding, path=path, offset=offset + error.start) from error
    except UnicodeEncodeError as error:
        raise _half_pair(encoding, path=path, offset=offset) from error
    return data


def undecodable(error: UnicodeDecodeError, encoding: str, *, path: str, offset: int) -> Exception:
    """The error for bytes that are invalid in the encoding."""
    byte = error.object[error.start]
    return corrupt(
        f"the byte {byte:#04x} is not {encoding}: set the option encoding to that of the file (latin-1, cp1252, …)",
        path=path,
        offset=offset,
        encoding=encoding,
    )


def _half_pair(encoding: str, *, path: str, offset: int) -> Exception:
    """The error for bytes that encode an unpaired surrogate, which some encodings allow."""
    return corrupt(
        f"the text decoded from {encoding} contains an unpaired surrogate",
        path=path,
        offset=offset,
        encoding=encoding,
    )


def _is_utf8(data: bytes) -> bool:
    """Raise the error of ``bytes.decode``, if any, without creating a text."""
    ends = pa.py_buffer(len(data).to_bytes(8, "little").rjust(16, b"\0"))
    array = pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(data))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class Transcoder:
    """Converts a stream whose encoding is not line-safe to UTF-8, and finds the length of parts of it in the file."""

    def __init__(self, encoding: str, path: str) -> None:
        self.encoding = encoding
        self._path = path
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._position = 0
        self._pending = b""
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        # Encoded without a byte order mark, each text has its length in the file.
        family = encoding[:6]
        self._plain = f"{family}-le" if family in _BYTE_ORDER_MARKS else encoding
        self._marks = _BYTE_ORDER_MARKS.get(family, ())
        self._needs_mark = encoding in _BYTE_ORDER_MARKS
        self._begun = False
        self.mark_bytes = 0

    def push(self, piece: bytes, *, is_last: bool = False) -> bytes:
        """The text that this piece completes, as UTF-8."""
        if not self._begun:
            # The byte order mark may be incomplete. Decoders hold back incomplete characters too.
            self._pending += piece
            if len(self._pending) < 4 and not is_last:
                return b""
            piece, self._pending, self._begun = self._pending, b"", True
            self.mark_bytes = next((len(mark) for mark in self._marks if piece.startswith(mark)), 0)
            if piece and self._needs_mark and not self.mark_bytes:
                raise corrupt(
                    f"the file does not begin with the byte order mark of {self.encoding}: set the option encoding to "
                    f"{self.encoding}-le or {self.encoding}-be, as its bytes are ordered",
                    path=self._path,
                    offset=0,
                    encoding=self.encoding,
                )
        held = len(self._decoder.getstate()[0])
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)
        if held + self._waiting_bytes > RECORD_BYTES_MAX:
            raise corrupt(
                f"{RECORD_BYTES_MAX} bytes decode to no text: set the option encoding to that of the file",
                path=self._path,
                offset=self._position - held,
                encoding=self.encoding,
            )
        if self._waiting_bytes < held and not is_last:
            return b""  # A decoder decodes all held bytes again at each call, and UTF-7 holds whole base64 sections.
        piece = b"".join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        try:
            text = self._decoder.decode(piece, is_last)
        except UnicodeDecodeError as error:
            offset = self._position - held + error.start
            raise undecodable(error, self.encoding, path=self._path, offset=offset) from error
        if self._position == 0:
            text = text.removeprefix("\ufeff")
        begin = self._position
        self._position += len(piece)
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise _half_pair(self.encoding, path=self._path, offset=begin) from error

    def length(self, data: bytes) -> int:
        """The number of bytes in the file that were decoded to this UTF-8."""
        return len(data.decode().encode(self._plain))
