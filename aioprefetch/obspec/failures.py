"""Errors of ours that are errors of obspec too, so that a consumer may catch either."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from obspec import exceptions

from aioprefetch import errors
from aioprefetch.errors import Error

T = TypeVar("T")


# obspec's exceptions go by the names of their classes, hence the same names.


class NotFoundError(errors.NotFound, exceptions.NotFoundError):
    """``NotFound`` for consumers of obspec."""


class InvalidPathError(errors.InvalidPath, exceptions.InvalidPathError):
    """``InvalidPath`` for consumers of obspec."""


class NotSupportedError(errors.Unsupported, exceptions.NotSupportedError):
    """``Unsupported`` for consumers of obspec."""


class AlreadyExistsError(errors.AlreadyExists, exceptions.AlreadyExistsError):
    """``AlreadyExists`` for consumers of obspec."""


class PreconditionError(errors.ConditionNotMatch, exceptions.PreconditionError):
    """``ConditionNotMatch`` for consumers of obspec: the object is another one than was named."""


class NotModifiedError(errors.ConditionNotMatch, exceptions.NotModifiedError):
    """``ConditionNotMatch`` for consumers of obspec: the object is the one that was named."""


class PermissionDeniedError(errors.PermissionDenied, exceptions.PermissionDeniedError):
    """``PermissionDenied`` for consumers of obspec."""


_CLASSES: tuple[tuple[type[Error], type[Error]], ...] = (
    (errors.NotFound, NotFoundError),
    (errors.InvalidPath, InvalidPathError),
    (errors.Unsupported, NotSupportedError),
    (errors.AlreadyExists, AlreadyExistsError),
    (errors.ConditionNotMatch, PreconditionError),
)


async def translated(work: Awaitable[T], *, unmodified: bool = False) -> T:
    """The result of ``work``; its error as one of obspec too, where that has a name for it.

    ``unmodified``: a condition that fails says that the object has not changed.
    """
    try:
        return await work
    except Error as error:
        known = as_obspec(error, unmodified=unmodified)
        if known is error:
            raise
        raise known from error


def as_obspec(error: Error, *, unmodified: bool = False) -> Error:
    """An error that obspec knows too, with all that the first one says; the error itself if there is none."""
    kind = next((ours for theirs, ours in _CLASSES if isinstance(error, theirs)), None)
    if type(error) is errors.PermissionDenied:  # Its subclasses say more.
        kind = PermissionDeniedError
    if kind is PreconditionError and unmodified:
        kind = NotModifiedError
    if kind is None or isinstance(error, exceptions.BaseError):
        return error
    return kind(
        error.message,
        operation=error.operation,
        path=error.path,
        status=error.status,
        context=error.context,
        head=error.head,
        received=error.received,
        retry_after_seconds=error.retry_after_seconds,
    )
