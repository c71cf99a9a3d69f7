"""Checks of the paths and arguments of an Operator's verbs: before any I/O, the same for every service. Pure, no I/O.

A value of the wrong type is ``InvalidType``, an impossible one ``InvalidArgument``. Text that goes into a header may
hold no control character. Each service has further rules for paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, get_args

from aioprefetch.accessor.http_headers import unquote_etag
from aioprefetch.errors import InvalidArgument, InvalidType, NotADirectory
from aioprefetch.options import Seconds
from aioprefetch.services.keys import LIST_ADVICE, checked_key, no_object
from aioprefetch.values import Checksum, PresignMethod

# Longer than the longest key of a store, since the root goes before a path: the service has the last word.
_PATH_BYTES_MAX = 4096

_TIME = Seconds(infinite=True, error=InvalidArgument)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ETAG = re.compile(r"[\x20\x21\x23-\x7e\x80-\xff]+")
_METADATA_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # the characters of header names
_METADATA_VALUE = re.compile(r"[\x20-\x7e]*")


def checked_path(path: object, operation: str, *, dots_allowed: bool = False) -> str:
    """``path`` unchanged. ``InvalidType`` or ``InvalidPath`` for a path that no service takes, as ``checked_key``."""
    if isinstance(path, str):
        return checked_key(path, operation=operation, bytes_max=_PATH_BYTES_MAX, dots_allowed=dots_allowed)
    from pathlib import PurePath

    hint = ": keys are text, of which Path drops // and a trailing /; give path.as_posix()"
    raise InvalidType(
        f"a path must be a string, not {type(path).__name__}{hint if isinstance(path, PurePath) else ''}",
        operation=operation,
    )


def check_file(path: str, operation: str, advice: str = LIST_ADVICE, *, is_read: bool = False) -> None:
    """``IsADirectory`` for the path of a directory, and for an empty path.

    With ``is_read`` a path that ends with ``/`` may name an object: the store is asked.
    """
    is_file = checked_path(path, operation) and path[-1] != "/"
    if not is_file and not (is_read and path.strip("/")):
        raise no_object(path, operation, advice)


def check_directory(path: str, operation: str, *, dots_allowed: bool = False) -> None:
    """``NotADirectory`` for a path without a slash at its end; ``""`` is the root."""
    if checked_path(path, operation, dots_allowed=dots_allowed) and not path.endswith("/"):
        raise NotADirectory("the path of a directory ends with /", operation=operation, path=path)


class Arguments:
    """Checks the arguments of one call, whose operation and path its errors name."""

    def __init__(self, operation: str, path: str) -> None:
        self.operation = operation
        self.path = path

    def text(self, name: str, value: object) -> str | None:
        """Text, or ``None``."""
        if value is None or isinstance(value, str):
            return value
        raise self._wrong_type(name, "a string", value)

    def flag(self, name: str, value: object) -> bool:
        """``True`` or ``False``."""
        if isinstance(value, bool):
            return value
        raise self._wrong_type(name, "True or False", value)

    def seconds(self, name: str, value: object) -> float:
        """A time above 0, infinity included."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong_type(name, "a number of seconds", value)
        return float(_TIME.checked(value, name, self.operation, self.path))

    def etag(self, name: str, value: object) -> str | None:
        """An ETag, or ``*``, without the quotes of HTTP."""
        text = self.text(name, value)
        if text is None:
            return None
        etag = unquote_etag(text)
        if etag is None or not _ETAG.fullmatch(etag):
            raise self._invalid(f"{name}={text!r} is not an ETag")
        return etag

    def version(self, value: object) -> str | None:
        """The name of a version."""
        text = self.text("version", value)
        if text == "":
            raise self._invalid("version is empty: leave it out for the newest one")
        return text

    def time(self, name: str, value: object) -> datetime | None:
        """A time with its zone, in UTC, or ``None``."""
        if value is None:
            return None
        if not isinstance(value, datetime):
            raise self._wrong_type(name, "a datetime", value)
        if value.tzinfo is None:
            raise self._invalid(f"{name}={value!r} has no time zone: give one, such as tzinfo=datetime.UTC")
        return value.astimezone(UTC)

    def method(self, value: object) -> PresignMethod:
        """The method of a presigned URL."""
        methods: tuple[PresignMethod, ...] = get_args(PresignMethod)
        for method in methods:
            if method == value:
                return method
        raise self._invalid(f"method must be one of {', '.join(methods)}, not {value!r}")

    def checksum(self, value: object) -> Checksum | None:
        """The name of a checksum, or ``None``."""
        names: tuple[Checksum, ...] = get_args(Checksum)
        for name in names:
            if name == value:
                return name
        if value is None:
            return None
        raise self._invalid(f"checksum must be one of {', '.join(map(repr, names))}, not {value!r}")

    def header(self, name: str, value: object) -> str | None:
        """Text that goes into a header."""
        text = self.text(name, value)
        if text is not None and _CONTROL.search(text):
            raise self._invalid(f"{name} holds a character that no header can hold: {text!r}")
        return text

    def user_metadata(self, value: object) -> dict[str, str]:
        """The user's names and values; ``None`` for an empty mapping. S3 takes only ASCII, so all services do."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._wrong_type("user_metadata", "a mapping of strings", value)
        pairs: Mapping[Any, Any] = value
        for name, text in pairs.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise InvalidType(
                    f"user_metadata must map strings to strings, not {name!r} to {type(text).__name__}",
                    operation=self.operation,
                    path=self.path,
                )
            if not _METADATA_NAME.fullmatch(name):
                raise self._invalid(f"user_metadata has the name {name!r}: letters, digits and - are allowed")
            if not _METADATA_VALUE.fullmatch(text):
                raise self._invalid(
                    f"user_metadata[{name!r}] must be printable ASCII: encode what is not, as with urllib.parse.quote"
                )
        return dict(pairs)

    def _wrong_type(self, name: str, wanted: str, value: object) -> InvalidType:
        return InvalidType(
            f"{name} must be {wanted}, not {value!r} of type {type(value).__name__}",
            operation=self.operation,
            path=self.path,
        )

    def _invalid(self, message: str) -> InvalidArgument:
        return InvalidArgument(message, operation=self.operation, path=self.path)
