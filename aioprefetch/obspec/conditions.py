"""The conditions of a get: sent with the read where the store can compare them, and checked before it otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aioprefetch.accessor.http_headers import unquote_etag
from aioprefetch.accessor.response_check import check_times
from aioprefetch.errors import ConditionNotMatch
from aioprefetch.obspec.failures import as_obspec
from aioprefetch.operator.arguments import Arguments
from aioprefetch.values import Capability, Metadata, StatRequest


class Conditions:
    """The conditions among the options of obspec.

    As in RFC 9110 a time counts where no ETags are given beside it. ``InvalidArgument`` for a time without a zone.
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        arguments = Arguments("read", path)
        until = arguments.time("if_unmodified_since", options.get("if_unmodified_since"))
        since = arguments.time("if_modified_since", options.get("if_modified_since"))
        self._path = path
        self._match = _etags(arguments.text("if_match", options.get("if_match")))
        self._none_match = _etags(arguments.text("if_none_match", options.get("if_none_match")))
        self._until = until if self._match is None else None
        self._since = since if self._none_match is None else None

    @property
    def can_say_unchanged(self) -> bool:
        """Whether the object must have changed."""
        return self._none_match is not None or self._since is not None

    def fields(self) -> dict[str, Any]:
        """The fields of a request that has these conditions, as far as one has such."""
        return {
            "if_match": self._match[0] if self._match and self._match != ["*"] else None,
            "if_none_match": self._none_match[0] if self._none_match else None,
            "if_modified_since": self._since,
            "if_unmodified_since": self._until,
        }

    def can_be_sent(self, capability: Capability) -> bool:
        """Whether a read with these conditions tells all: it has one ETag, and its failure says which one failed."""
        if self.can_say_unchanged and not (self._match in (None, ["*"]) and self._until is None):
            return False
        if len(self._match or ()) > 1 or len(self._none_match or ()) > 1 or self._none_match == ["*"]:
            return False
        return all(getattr(capability, f"read_{name}") for name, value in self.fields().items() if value is not None)

    def check(self, found: Metadata) -> None:
        """``PreconditionError`` or ``NotModifiedError`` for a condition that does not hold, in the order of RFC 9110.

        ``Unsupported`` for a time, where the store tells none.
        """
        if self._match is not None and self._match != ["*"] and found.etag not in self._match:
            raise as_obspec(self._failed(f"the object's ETag is {found.etag!r}, and none of {self._match}"))
        self._check_time(found, StatRequest(path=self._path, if_unmodified_since=self._until), unmodified=False)
        if self._none_match is not None and (self._none_match == ["*"] or found.etag in self._none_match):
            raise as_obspec(self._failed(f"the object's ETag is still {found.etag!r}"), unmodified=True)
        self._check_time(found, StatRequest(path=self._path, if_modified_since=self._since), unmodified=True)

    def _check_time(self, found: Metadata, request: StatRequest, *, unmodified: bool) -> None:
        try:
            check_times(request, found.last_modified)
        except ConditionNotMatch as error:
            raise as_obspec(error, unmodified=unmodified) from error

    def _failed(self, why: str) -> ConditionNotMatch:
        return ConditionNotMatch(why, operation="read", path=self._path)


def _etags(text: str | None) -> list[str] | None:
    """The ETags of a list, without their quotes. ``["*"]`` stands for any, ``None`` for no condition."""
    if text is None:
        return None
    return [etag for part in text.split(",") if (etag := unquote_etag(part)) is not None]
