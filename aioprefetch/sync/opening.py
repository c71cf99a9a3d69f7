"""``ap.sync.open``: files of every mode over the object of a URL, or of a path of an operator."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal, TextIO, Unpack, overload

from aioprefetch.credentials import frameless
from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType, Unsupported, printable, redact
from aioprefetch.operator.from_uri import (
    BUILT_IN,
    followed,
    local_uri,
    split_uri,
    split_url,
    store_options,
    unknown_option,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator, operator_at
from aioprefetch.reader.options import READER_OPTIONS
from aioprefetch.sync.file import SyncFile
from aioprefetch.verbs.requests import WRITE_OPTIONS

# A process that reads bytes loads neither what writes nor what decodes.
if TYPE_CHECKING:
    from aioprefetch.operator.options import AnyUrlOptions, ReadUrlOptions, WriteUrlOptions
    from aioprefetch.sync.codecs import Compression, TextWriteFile
    from aioprefetch.sync.write_file import SyncWriteFile

# Both the operator and the reader know them; a file that has its operator to itself gives them to the operator.
SHARED_OPTIONS = frozenset({"block_bytes", "prefetch_blocks"})


class Mode:
    """A mode of ``open``, checked: ``r``, ``w`` or ``x``, of bytes or of text."""

    def __init__(self, mode: object, *, path: str) -> None:
        if not isinstance(mode, str):
            raise InvalidType(f"mode must be a string such as 'rb', not {mode!r}", operation="open", path=path)
        kinds = set(mode)
        is_mode = len(kinds) == len(mode) and kinds <= set("rwxabt+") and len(kinds & set("rwxa")) == 1
        if not is_mode or {"b", "t"} <= kinds:
            raise InvalidArgument(f"mode={mode!r} is not a mode of a file", operation="open", path=path)
        if kinds & {"a", "+"}:
            what = "an object is read or written, not both" if "+" in kinds else "nothing is appended to an object"
            raise Unsupported(
                f"mode={mode!r} is not supported: {what}; mode='wb' writes it from its start to its end",
                operation="open",
                path=path,
            )
        self.kind = next(kind for kind in "rwx" if kind in kinds)
        self.is_text = "b" not in kinds
        self.name = self.kind if self.is_text else f"{self.kind}b"


def _text_options(mode: Mode, given: Mapping[str, str | None], *, path: str) -> dict[str, str | None]:
    """The options of a text. ``InvalidArgument`` if there are such for bytes, as Python's ``open`` has it."""
    if not mode.is_text:
        for name in (name for name, value in given.items() if value is not None):
            raise InvalidArgument(
                f"{name} goes with text, and mode={mode.name!r} is bytes", operation="open", path=path
            )
    return {**given, "encoding": given["encoding"] or "utf-8"}


@overload
def open(  # noqa: A001 - it replaces the builtin
    url: str | os.PathLike[str],
    mode: Literal["rb", "br"] = "rb",
    *,
    operator: Operator | None = None,
    compression: None = None,
    **options: Unpack[ReadUrlOptions],
) -> SyncFile: ...


@overload
def open(  # type: ignore[overload-overlap]  # noqa: A001 - as above
    url: str | os.PathLike[str],
    mode: Literal["wb", "xb", "bw", "bx"],
    *,
    operator: Operator | None = None,
    compression: None = None,
    **options: Unpack[WriteUrlOptions],
) -> SyncWriteFile: ...


@overload
def open(  # noqa: A001 - it replaces the builtin
    url: str | os.PathLike[str],
    mode: Literal["w", "wt", "tw", "x", "xt", "tx"],
    *,
    operator: Operator | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    compression: Compression | None = None,
    **options: Unpack[WriteUrlOptions],
) -> TextWriteFile: ...


@overload
def open(  # noqa: A001 - it replaces the builtin
    url: str | os.PathLike[str],
    mode: Literal["r", "rt", "tr"],
    *,
    operator: Operator | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    compression: Compression | None = None,
    **options: Unpack[ReadUrlOptions],
) -> TextIO: ...


@overload
def open(  # noqa: A001 - it replaces the builtin
    url: str | os.PathLike[str],
    mode: Literal["rb", "br", "wb", "xb", "bw", "bx"] = "rb",
    *,
    operator: Operator | None = None,
    compression: Compression,
    **options: Unpack[AnyUrlOptions],
) -> IO[bytes]: ...


@overload
def open(  # noqa: A001 - it replaces the builtin
    url: str | os.PathLike[str],
    mode: str = "rb",
    *,
    operator: Operator | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    compression: Compression | None = None,
    **options: Unpack[AnyUrlOptions],
) -> IO[Any]: ...


@frameless
def open(  # noqa: A001 - it replaces the builtin
    url: str | os.PathLike[str],
    mode: str = "rb",
    *,
    operator: Operator | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    compression: Compression | None = None,
    **options: Unpack[AnyUrlOptions],
) -> Any:
    """Open an object as a file. No request is sent before the first read, or the first part that is written.

    ``url`` is a URL (``s3://bucket/key``) or a ``pathlib.Path`` of this machine; with ``operator``, a path in that.
    ``mode`` is ``rb`` or ``r`` to read, ``wb`` or ``w`` to write, ``xb`` or ``x`` to write where there is no object
    (``AlreadyExists``). A written object appears when its file is closed, whole; a ``with`` block that fails writes
    none. ``encoding`` (UTF-8 by default), ``errors`` and ``newline`` of a text as for Python's ``open``.
    ``compression`` is ``gzip``, ``bz2``, ``xz``, ``zstd`` (Python 3.14, or the package backports.zstd), or ``infer`` by
    the end of the path. By default bytes are taken as they are.

    ``options`` as for ``Operator.from_uri``, and for ``Operator.reader`` or ``Operator.write``; with ``operator``
    for the reader or the write alone. An operator that was made here is closed with the file. Raises
    ``ConfigInvalid`` for an option that neither knows, and ``Unsupported`` for appending and for reading and writing at
    once.
    """
    text = {"encoding": encoding, "errors": errors, "newline": newline}
    return open_object(url, mode, operator, options, text=text, compression=compression)


def open_object(
    url: str | os.PathLike[str],
    mode: str,
    operator: Operator | None,
    options: Mapping[str, Any],
    *,
    text: Mapping[str, str | None],
    compression: str | None,
    on_end: Callable[[], None] | None = None,
) -> Any:
    """``open``, where ``text`` are the options of a text; ``on_end`` is called when a file to write has ended."""
    if operator is None:
        url = local_uri(url)
    if not isinstance(url, str):
        raise InvalidType(f"a URL or path must be a string, not {url!r}", operation="open")
    shown = printable(redact(url))
    checked = Mode(mode, path=shown)
    text = _text_options(checked, text, path=shown)
    if compression is None and not checked.is_text:
        return _open_bytes(url, checked, operator, options, on_end)
    from aioprefetch.sync import codecs

    codec = codecs.codec_of(compression, url if operator is not None else split_url(url)[1])
    file = _open_bytes(url, checked, operator, options, on_end)
    if codec is None:
        return codecs.layered(file, checked.name, text, compressed=None, decompressed=None)
    name = str(file.name)
    make = partial(codecs.codec_file, codec, mode="wb", path=name)
    return codecs.layered(
        file,
        checked.name,
        text,
        compressed=lambda below: codecs.CompressedFile(below, make, name=name),
        decompressed=lambda below: codecs.DecompressedFile(below, codec, name=name),
    )


def _open_bytes(
    url: str,
    mode: Mode,
    operator: Operator | None,
    options: Mapping[str, Any],
    on_end: Callable[[], None] | None,
) -> Any:
    own_options, of = (READER_OPTIONS, "a reader") if mode.kind == "r" else (WRITE_OPTIONS, "a write")
    shared_options = SHARED_OPTIONS if mode.kind == "r" else frozenset[str]()
    own: dict[str, Any]
    if operator is not None:
        check_options(options, own_options, of=of, path=url)
        operator = checked_operator(operator, "open")
        path, own, name, owns_operator, shares_runtime = url, dict(options), None, False, False
    else:
        store, path = split_url(_followed(url) if mode.kind == "r" else url)
        scheme, _ = split_uri(store)
        names = own_options | set(store_options(scheme))
        for each in options.keys() - names:
            shown = printable(redact(url))
            raise unknown_option(each, names, of=f"a file at {scheme}://", operation="open", path=shown)
        own = {each: value for each, value in options.items() if each in own_options - shared_options}
        others = {each: value for each, value in options.items() if each not in own}
        operator, shares_runtime = operator_at(store, others)
        name, owns_operator = redact(url), True
    if mode.kind == "r":
        return SyncFile(operator, path, own, name=name, owns_operator=owns_operator, shares_runtime=shares_runtime)
    from aioprefetch.sync.write_file import SyncWriteFile

    if mode.kind == "x":
        own["if_not_exists"] = True
    return SyncWriteFile(
        operator,
        path,
        own,
        name=name,
        mode=f"{mode.kind}b",
        owns_operator=owns_operator,
        shares_runtime=shares_runtime,
        on_end=on_end,
    )


def _followed(url: str) -> str:
    """The URL of the local file that a link leads to; any other URL as it is."""
    scheme, _, path = url.partition("://")
    return f"file://{followed(path)}" if scheme == "file" else url


def check_options(options: Mapping[str, Any], names: frozenset[str], *, of: str, path: str) -> None:
    """Raise ``ConfigInvalid`` for a name that is not an option of a reader, or of a write."""
    for name in options.keys() - names:
        if any(name in store_options(scheme) for scheme in BUILT_IN):
            raise ConfigInvalid(
                f"{name!r} is not an option of {of}; options of a store belong to Operator.from_uri",
                operation="open",
                path=path,
            )
        raise unknown_option(name, names, of=of, operation="open", path=path)


__all__ = ["open", "split_url"]
