"""The requests of an Operator's verbs, made of arguments that are checked. No I/O."""

# Annotations are values in this module: of text, a ``TypedDict`` would compile each one when the package is imported.

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType
from aioprefetch.options import OBJECT, Option
from aioprefetch.ranges import OFFSET_MAX, checked_range
from aioprefetch.values import (
    HEADERS,
    Checksum,
    ListRequest,
    PresignMethod,
    PresignRequest,
    ReadRequest,
    StatRequest,
    WriteRequest,
)
from aioprefetch.verbs.arguments import Arguments, check_file, checked_path


class StatOptions(TypedDict, total=False):
    """The options of a stat. All conditions that are given have to hold, otherwise it is ``ConditionNotMatch``.

    ``Unsupported`` where a store cannot obey: ``capability`` tells.
    """

    if_match: str | None
    """The ETag that the object must have."""
    if_none_match: str | None
    """The ETag that the object must not have."""
    if_modified_since: datetime | None
    """A time with its zone; stores keep whole seconds: the object must have been written after it."""
    if_unmodified_since: datetime | None
    """A time with its zone: the object must not have been written after it."""
    version: str | None
    """The version of the object, where the store keeps several."""


class ReadOptions(StatOptions, total=False):
    """The options of a read beside its range."""

    timeout_seconds: float | None
    """The time for the whole call, all attempts included."""


# The arguments of verbs, with the words of other libraries for them.
_RANGE_WORDS: Mapping[str, Option] = {
    row.name: row
    for row in (
        Option("offset", OBJECT, also="boto3:Range other:start,begin,range,range_start", hint="and size, in bytes"),
        Option(
            "size", OBJECT, also="other:end,length,nbytes,count,n,stop,range_end", hint="a number of bytes, not an end"
        ),
        Option("suffix", OBJECT, also="other:last,tail"),
    )
}
_PRESIGN_WORDS: Mapping[str, Option] = {
    "expires_seconds": Option("expires_seconds", OBJECT, also="boto3:ExpiresIn other:expires_in,expires,expiration"),
    "method": Option("method", OBJECT, also="boto3:ClientMethod,HttpMethod other:http_method"),
}
STAT_OPTIONS = frozenset(StatOptions.__annotations__)
READ_OPTIONS = frozenset(ReadOptions.__annotations__)


# The path of an object, or with a version of it.
ObjectName = str | tuple[str, str | None]
# The path of a file of this machine.
LocalPath = str | os.PathLike[str]


def read_request(
    first_bytes: int,
    path: str,
    offset: int,
    size: int | None,
    suffix: int | None = None,
    options: Mapping[str, Any] | None = None,
    positional: Sequence[object] = (),
) -> ReadRequest | None:
    """The request of a read, ``None`` for an empty range. Fast path for valid arguments: every read pays for it.

    A read of more than ``first_bytes``, or of unknown length, is for that many first. ``TypeError`` for an option that
    there is not, and for anything ``positional`` beside the path: of two numbers the second is a size to some
    libraries, and an end to others.
    """
    if positional:
        named = "the range of a read is given by name, offset= and size= (not an end), or suffix="
        raise InvalidType(f"{named}: not {', '.join(map(repr, positional))}", operation="read", path=str(path))
    check_file(path, "read", is_read=True)
    is_whole = size is None and suffix is None and type(offset) is int and offset == 0
    if not is_whole and (
        suffix is not None or not (type(offset) is type(size) is int and 0 <= offset < offset + size <= OFFSET_MAX)
    ):
        offset, size = checked_range(offset, size, operation="read", path=path)
        if suffix is not None:
            if offset or size is not None:
                raise ConfigInvalid("suffix goes with neither offset nor size", operation="read", path=path)
            _, suffix = checked_range(0, suffix, operation="read", path=path)
    chosen = _chosen(path, options) if options else {}
    if size == 0 or suffix == 0:
        return None
    length = size if suffix is None else suffix
    return ReadRequest(
        path=path,
        offset=offset,
        size=size,
        suffix=suffix,
        first_bytes=None if length is not None and length <= first_bytes else first_bytes,
        **chosen,
    )


def _chosen(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a read's request for its options, checked."""
    _check_names(options, READ_OPTIONS | _RANGE_WORDS.keys(), of="a read", words=_RANGE_WORDS)
    arguments = Arguments("read", path)
    timeout_seconds = options.get("timeout_seconds")
    deadline = None
    if timeout_seconds is not None:
        deadline = asyncio.get_running_loop().time() + arguments.seconds("timeout_seconds", timeout_seconds)
    return {"deadline": deadline, **_conditions(arguments, options)}


def _conditions(arguments: Arguments, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "if_match": arguments.etag("if_match", options.get("if_match")),
        "if_none_match": arguments.etag("if_none_match", options.get("if_none_match")),
        "if_modified_since": arguments.time("if_modified_since", options.get("if_modified_since")),
        "if_unmodified_since": arguments.time("if_unmodified_since", options.get("if_unmodified_since")),
        "version": arguments.version(options.get("version")),
    }


def stat_request(path: str, options: Mapping[str, Any]) -> StatRequest:
    """The request of a stat. Raises ``TypeError`` for an unknown option."""
    checked_path(path, "stat")
    if not options:
        return StatRequest(path=path)
    _check_names(options, STAT_OPTIONS, of="a stat")
    arguments = Arguments("stat", path)
    return StatRequest(path=path, **_conditions(arguments, options))


def list_request(prefix: str, *, recursive: bool, start_after: str | None, versions: bool) -> ListRequest:
    """The request of a listing."""
    checked_path("" if start_after is None else start_after, "list", dots_allowed=True)
    checked_path(prefix, "list", dots_allowed=True)
    arguments = Arguments("list", prefix)
    return ListRequest(
        path=prefix,
        recursive=arguments.flag("recursive", recursive),
        versions=arguments.flag("versions", versions),
        start_after=start_after,
    )


class PresignOptions(TypedDict, total=False):
    """The options of a presigned URL. The last three are headers of the response, in place of the object's."""

    expires_seconds: float
    """How long the URL is valid: 900 by default."""
    method: PresignMethod
    """The one thing that the URL is for: ``"GET"`` by default, ``"HEAD"``, ``"PUT"`` or ``"DELETE"``."""
    version: str | None
    """One version of the object, of a store that keeps them."""
    content_type: str | None
    """The media type under which a browser takes the object, for ``GET`` and ``HEAD`` as the next two."""
    content_disposition: str | None
    """Whether a browser shows the object or saves it, and under which name (``'attachment; filename="a.csv"'``)."""
    cache_control: str | None
    """How long caches may keep the response."""


PRESIGN_OPTIONS = frozenset(PresignOptions.__annotations__)


def presign_request(
    path: str,
    *,
    expires_seconds: float = 900.0,
    method: PresignMethod = "GET",
    version: str | None = None,
    content_type: str | None = None,
    content_disposition: str | None = None,
    cache_control: str | None = None,
    **others: object,
) -> PresignRequest:
    """The request of a presigned URL. ``TypeError`` for ``others``."""
    _check_names(others, PRESIGN_OPTIONS, of="a presigned URL", words=_PRESIGN_WORDS)
    check_file(path, "presign", is_read=method != "PUT")
    arguments = Arguments("presign", path)
    request = PresignRequest(
        path=path,
        method=arguments.method(method),
        expires_seconds=arguments.seconds("expires_seconds", expires_seconds),
        version=arguments.version(version),
        content_type=arguments.header("content_type", content_type),
        content_disposition=arguments.header("content_disposition", content_disposition),
        cache_control=arguments.header("cache_control", cache_control),
    )
    if method not in ("GET", "HEAD") and not content_type is content_disposition is cache_control is None:
        raise InvalidArgument(
            f"content_type, content_disposition and cache_control go with method='GET' or 'HEAD', not {method!r}: "
            "they are headers of the response",
            operation="presign",
            path=path,
        )
    return request


class ObjectOptions(TypedDict, total=False):
    """The options of a write that no store has for all of its writes."""

    content_type: str | None
    """The media type of the object, by default what the end of its name suggests (``.json``, ``.tar.gz``); ``""`` sends
    none. The store keeps it with the object, as it does the next six."""
    content_encoding: str | None
    """How the bytes are encoded (``"gzip"``). No name suggests it."""
    content_disposition: str | None
    """Whether a browser shows the object or saves it (``"attachment"``)."""
    content_language: str | None
    """The language of the object's readers (``"de"``)."""
    cache_control: str | None
    """How long caches may keep the object (``"max-age=3600"``)."""
    expires: str | None
    """A date of HTTP after which caches ask again; obstore's stores drop it."""
    user_metadata: Mapping[str, str] | None
    """Names and values of your own."""
    if_match: str | None
    """Replace only the object with this ETag, otherwise ``ConditionNotMatch``; ``"*"`` is any."""
    if_none_match: str | None
    """Do not replace the object with this ETag (``ConditionNotMatch``); ``"*"`` is ``if_not_exists=True``."""
    if_not_exists: bool
    """Replace nothing: ``AlreadyExists`` if there is an object."""
    storage_class: str | None
    """The store's word for a class (``"STANDARD_IA"``)."""
    sse_kms_key_id: str | None
    """The key of AWS KMS by which S3 encrypts the object."""


class WriteOptions(ObjectOptions, total=False):
    """The options of a write. ``Unsupported`` where a store cannot obey: ``capability`` tells."""

    checksum: Checksum | None
    """The checksum that S3 verifies and keeps with the object (``"sha256"``); by default the operator's."""


WRITE_OPTIONS = frozenset(WriteOptions.__annotations__)


def write_request(operation: str, path: str, options: Mapping[str, Any]) -> WriteRequest:
    """The request of a write. Raises ``IsADirectory``, and ``TypeError`` for an unknown option."""
    check_file(path, operation)
    if not options:
        return WriteRequest(path=path)
    _check_names(options, WRITE_OPTIONS, of="a write")
    arguments = Arguments(operation, path)
    if_match = arguments.etag("if_match", options.get("if_match"))
    if_none_match = arguments.etag("if_none_match", options.get("if_none_match"))
    if_not_exists = arguments.flag("if_not_exists", options.get("if_not_exists", False)) or if_none_match == "*"
    if if_not_exists and if_match is not None:
        raise InvalidArgument(
            "if_not_exists refuses to replace an object, and if_match replaces one: give one of them",
            operation=operation,
            path=path,
        )
    described: dict[str, Any] = {
        name: arguments.header(name, options.get(name)) for name in (*HEADERS, "storage_class", "sse_kms_key_id")
    }
    return WriteRequest(
        path=path,
        user_metadata=arguments.user_metadata(options.get("user_metadata")),
        if_match=if_match,
        if_none_match=None if if_none_match == "*" else if_none_match,
        if_not_exists=if_not_exists,
        checksum=arguments.checksum(options.get("checksum")),
        **described,
    )


class MoveOptions(TypedDict, total=False):
    """The conditions of a move."""

    if_match: str | None
    """The ETag of the source: ``ConditionNotMatch`` for another one."""
    if_not_exists: bool
    """Replace nothing: ``AlreadyExists`` if there is an object at the target."""
    version: str | None
    """The version of the source that is meant, in place of the current one."""


MOVE_OPTIONS = frozenset(MoveOptions.__annotations__)


def copy_options(operation: str, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The checked options of a copy or a move, the conditions with their defaults."""
    _check_names(options, MOVE_OPTIONS if operation == "move" else MOVE_OPTIONS | {"on_progress"}, of=f"a {operation}")
    arguments = Arguments(operation, path)
    return {
        **options,
        "if_match": arguments.etag("if_match", options.get("if_match")),
        "if_not_exists": arguments.flag("if_not_exists", options.get("if_not_exists", False)),
        "version": arguments.version(options.get("version")),
    }


def _check_names(
    options: Mapping[str, Any], names: Collection[str], *, of: str, words: Mapping[str, Option] | None = None
) -> None:
    """Raise ``TypeError``, as Python does, for an unknown option.

    ``words`` are the rows of some of them, for the words of other libraries.
    """
    if unknown := options.keys() - names:
        from aioprefetch.options.words import advice_for

        name, listed = min(unknown), ", ".join(sorted(names))
        advice = advice_for(name, names, [(of, words)] if words else ())
        raise TypeError(f"unknown option {name!r} for {of}{advice}; there are {listed}")
