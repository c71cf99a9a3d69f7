"""The table of options: rows at the fields that hold their values, kinds that check them, and what follows from both.

``region: str | None = option(None, REGION, also="boto3:region_name hadoop:endpoint.region")`` is a whole option: its
type, its default, its kind and the words of other libraries for it. Its documentation is its paragraph in the docstring
of the class. ``table_of`` has the rows of a class and its bases: checks, variables, URIs, Spark's texts, the command
line, words of fsspec, messages, the types of doors and the tables of the pages are made from them. Pure.
``docs/guides/service.md`` shows the rows of a service of your own.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, field, replace
from types import MappingProxyType, UnionType
from typing import Any, Literal, SupportsIndex, TypeVar, Union, get_args, get_origin, get_type_hints

from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import byte_count

T = TypeVar("T")

_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
# Python also takes digits of other scripts, underscores between digits, and numbers of any length.
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?([0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(e[+-]?[0-9]{1,2})?", re.ASCII | re.IGNORECASE)


class Kind:
    """A kind of values. Without ``keep`` and ``parse`` any object is one, and no text stands for it.

    ``keep`` returns what is kept of a value, ``parse`` the value of a text. They raise ``TypeError`` or ``ValueError``
    for what they refuse, which ``right`` and ``right_text`` describe. ``annotation`` is the type of what callers may
    give, where it is wider than the field's; ``error`` is raised for a wrong value. No message has a value that
    may be secret.
    """

    def __init__(
        self,
        right: str = "an object",
        keep: Callable[[Any], Any] | None = None,
        parse: Callable[[str], Any] | None = None,
        *,
        right_text: str = "",
        annotation: str = "",
        is_secret: bool = False,
        error: type[InvalidArgument] = ConfigInvalid,
    ) -> None:
        self.right, self.right_text, self.annotation, self.is_secret = right, right_text or right, annotation, is_secret
        self._keep, self._parse, self._error = keep, parse, error
        self.is_text = parse is not None

    def checked(self, value: Any, name: str, operation: str = "configure", path: str = "") -> Any:
        """The value to keep for a value that was given.

        ``ConfigInvalid`` names the option, the value and a right one; it is ``InvalidType`` for a wrong type where a
        verb takes the option.
        """
        if self._keep is None:
            return value
        error = self._error
        try:
            return self._keep(value)
        except TypeError:
            error = error if operation == "configure" else InvalidType
        except ValueError:
            pass
        shown = f"; it is a {type(value).__name__}" if self.is_secret else f", not {value!r}"
        raise error(f"{name} must be {self.right}{shown}", operation=operation, path=path)

    def parsed(self, text: str) -> Any:
        """The value of a text. ``ValueError`` or ``KeyError`` for another text."""
        if self._parse is None:
            raise ValueError(text)
        return self._parse(text)


class Checked(Kind):
    """A value that a function of it and its name checks, with errors of its own: for rules of one option alone."""

    def __init__(
        self, check: Callable[[Any, str], Any], right: str = "text", *, is_text: bool = True, **more: Any
    ) -> None:
        super().__init__(right, parse=more.pop("parse", str) if is_text else None, **more)
        self._check = check

    def checked(self, value: Any, name: str, operation: str = "configure", path: str = "") -> Any:
        return self._check(value, name)


class Secrets(Checked):
    """Texts by name; any may be a secret. As text it is an object of JSON."""

    def __init__(self, check: Callable[[Any, str], Any]) -> None:
        super().__init__(check, "a JSON object of texts", is_secret=True, parse=_texts_of)


class Text(Kind):
    """Text, which is not empty unless it ``may_be_empty``."""

    def __init__(self, right: str = "text", *, may_be_empty: bool = False) -> None:
        def keep(value: Any) -> str:
            if not isinstance(value, str):
                raise TypeError(value)
            if not (value or may_be_empty):
                raise ValueError(value)
            return value

        super().__init__(right, keep, keep)


class Integer(Kind):
    """An integer within bounds, which belong to it."""

    def __init__(self, minimum: int | None = None, maximum: int | None = None, **more: Any) -> None:
        low, high = -math.inf if minimum is None else minimum, math.inf if maximum is None else maximum

        def keep(value: Any) -> int:
            number = value if type(value) is int else _index_of(value)
            if not low <= number <= high:
                raise ValueError(value)
            return number

        bounds = f" from {minimum} to {maximum}" if maximum is not None else f" of at least {minimum}"
        super().__init__(
            f"an integer{'' if minimum is maximum is None else bounds}",
            keep,
            lambda text: _number_of(text, _INTEGER, int),
            **more,
        )


class Size(Integer):
    """A number of bytes within bounds: a number, or text such as ``64 MiB``."""

    def __init__(self, minimum: int = 1, maximum: int | None = None, *, annotation: str = "ByteCount") -> None:
        right = "a size above 0 such as 1048576, 64m or 1g" if minimum else "a size such as 1048576, 64m or 0"
        super().__init__(minimum, maximum, right_text=right, annotation=annotation)

    def checked(self, value: Any, name: str, operation: str = "configure", path: str = "") -> Any:
        return super().checked(byte_count(value, name, operation=operation, path=path), name, operation, path)

    def parsed(self, text: str) -> Any:
        return byte_count(text, "", operation="configure")


class Seconds(Kind):
    """A number of seconds above 0, and 0 or infinity where they are allowed."""

    def __init__(self, *, zero: bool = False, infinite: bool = False, **more: Any) -> None:
        def keep(value: Any) -> float:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
            if not (number >= 0 if zero else number > 0) or not (infinite or math.isfinite(number)):
                raise ValueError(value)
            return number

        right = f"a number of seconds {'of at least 0' if zero else 'above 0'}"
        super().__init__(right, keep, _number_of, right_text="a number of seconds such as 5 or 0.5", **more)


class Choice(Kind):
    """One of a few words. A text may have any case."""

    def __init__(self, *words: str) -> None:
        def keep(value: Any) -> Any:
            if value not in words:
                raise ValueError(value)
            return value

        self.words = words
        super().__init__(
            f"one of {', '.join(map(repr, words))}",
            keep,
            lambda text: text.strip().lower(),
            right_text=f"one of {', '.join(words)}",
        )


def invalid(message: str) -> ConfigInvalid:
    """The error of options that cannot work."""
    return ConfigInvalid(message, operation="configure")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _index_of(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(value)
    return value.__index__()


def _number_of(text: str, pattern: re.Pattern[str] = _NUMBER, number: Callable[[str], Any] = float) -> Any:
    if pattern.fullmatch(text.strip()) is None:
        raise ValueError(text)
    return number(text)


def _file(value: Any) -> str:
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(text, str) or not text:
        raise TypeError(value)
    return text


def _secret(value: Any) -> Secret | None:
    if not isinstance(value, str | Secret):
        raise TypeError(value)
    return Secret.of(value)


def _texts_of(text: str) -> Mapping[str, str]:
    import json

    parsed = json.loads(text)
    if not isinstance(parsed, dict) or not all(isinstance(item, str) for item in parsed.values()):
        raise ValueError(text)
    return parsed


OBJECT, TEXT, FILE = Kind(), Text(), Kind("the path of a file", _file, str)
FLAG = Kind("True or False", _flag, lambda text: _FLAGS[text.strip().lower()], right_text="true or false")
SECRET = Kind("text, or env:NAME", _secret, str, is_secret=True)
SECONDS, SECONDS_OR_ZERO = Seconds(), Seconds(zero=True)
COUNT, COUNT_OR_ZERO = Integer(1), Integer(0)
SIZE, SIZE_OR_ZERO = Size(1), Size(0)


# --- rows -------------------------------------------------------------------------------------------------------------

# Where an option is given: by a URI's keywords and the recipe, as a part of the URI, or in the recipe alone.
Given = Literal["keyword", "uri", "recipe"]
# What an option of a source is for.
Scope = Literal["all", "batch", "stream"]

PREFIX = "AIOPREFETCH_"
_ROW = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """A row. ``name`` is what callers write, ``target`` the field that it sets.

    ``also`` has the words of other libraries, each as ``library:word,word``: ``fsspec`` for s3fs, gcsfs and adlfs;
    ``boto3``; ``obstore``; ``hadoop`` for ``fs.s3a.*`` without that; ``spark`` for another name than that in camel
    case; ``other``. ``hint`` follows ours where such a word is answered. ``has_variable``: there is a variable of the
    environment, and a form on the command line.
    """

    name: str
    kind: Kind
    default: Any = field(default_factory=lambda: MISSING)  # To a dataclass, MISSING itself means no default.
    also: str = ""
    hint: str = ""
    doc: str = ""
    given: Given = "keyword"
    scope: Scope = "all"
    has_variable: bool = True
    target: str = ""
    annotation: str = ""

    @property
    def variable(self) -> str:
        """The name of its variable."""
        return f"{PREFIX}{self.name.upper()}"

    @property
    def spark(self) -> str:
        """Its name in Spark."""
        first, *rest = self.name.split("_")
        return next(self.words("spark"), first + "".join(part.capitalize() for part in rest))

    def words(self, *libraries: str) -> Iterator[str]:
        """The words for it of some libraries."""
        for part in self.also.split():
            library, _, words = part.partition(":")
            if library in libraries:
                yield from words.split(",")

    def read(self, text: str, shown: str, *, is_checked: bool = True) -> Any:
        """The value of a text, not yet as it is kept. ``shown`` is what messages call the option.

        ``ConfigInvalid`` for a text without a value; it does not show what may be secret.
        """
        try:
            value = self.kind.parsed(text)
            if is_checked:
                self.kind.checked(value, shown)
        except (KeyError, ValueError) as error:
            if isinstance(error, ConfigInvalid) and isinstance(self.kind, Checked):
                raise
            said = "" if self.kind.is_secret else f"={excerpt(text)!r}"
            raise invalid(f"{shown}{said} is not {self.kind.right_text}") from None
        return value


def option(
    default: T,
    kind: Kind,
    *,
    also: str = "",
    name: str = "",
    hint: str = "",
    doc: str = "",
    given: Given = "keyword",
    scope: Scope = "all",
    has_variable: bool = True,
    **of_field: Any,
) -> T:
    """The row of a field with this default; ``name`` where it is not the field's. ``of_field``: see ``field``."""
    row = Option(name, kind, default, also, hint, doc, given, scope, has_variable and kind.is_text)
    return field(default=default, metadata={_ROW: row}, **of_field)


def in_uri(kind: Kind, doc: str = "") -> dict[str, Option]:
    """The ``metadata`` of a field without a default, which stands in the URI."""
    return {_ROW: Option("", kind, doc=doc, given="uri", has_variable=False)}


@functools.cache
def table_of(owner: Any) -> Mapping[str, Option]:
    """The rows of a class and its bases by name, in order.

    A name of its ``uri_options`` without a row has one whose kind follows from the annotation.
    """
    rows = dict(_rows_of(owner))
    return MappingProxyType({**{row.name: row for row in _annotated(owner)}, **rows})


@functools.cache
def _rows_of(owner: Any) -> Mapping[str, Option]:
    rows: dict[str, Option] = {}
    for base in reversed(owner.__mro__):
        own: Mapping[str, Any] = vars(base).get("__dataclass_fields__") or vars(base)
        for target, made in own.items():
            row = made.metadata.get(_ROW) if isinstance(made, Field) else None
            if row is not None and (target in base.__annotations__ or (row.name or target) not in rows):
                annotation = row.kind.annotation or base.__annotations__.get(target, "")
                text = getattr(annotation, "__name__", str(annotation))
                rows[row.name or target] = replace(row, name=row.name or target, target=target, annotation=text)
    return rows


def _annotated(owner: type) -> Iterator[Option]:
    names = getattr(owner, "uri_options", ())
    hints = get_type_hints(owner) if names else {}
    for name in names:
        types = _members(hints.get(name))
        number: Kind = Size() if "bytes" in name else Integer()
        kinds = {Secret: SECRET, bool: FLAG, int: number, float: SECONDS_OR_ZERO, str: TEXT}
        kind = next((kinds[form] for form in kinds if form in types), OBJECT)
        yield Option(name, kind, None, has_variable=kind.is_text, target=name)


def _members(hint: Any) -> set[Any]:
    """The types of a union, of a ``Literal`` the type of its values."""
    if get_origin(hint) in (Union, UnionType):
        return {member for part in get_args(hint) for member in _members(part)}
    return {type(value) for value in get_args(hint)} if get_origin(hint) is Literal else {hint}


def check(options: Any, shown: str = "{}") -> None:
    """Check the fields of frozen options by their rows, and keep what the kinds make of them.

    A field that has its default needs no check. ``shown`` is how messages call an option of this name.
    """
    for row in _rows_of(options.__class__).values():
        value = getattr(options, row.target)
        if value is not row.default and (kept := row.kind.checked(value, shown.format(row.target))) is not value:
            object.__setattr__(options, row.target, kept)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options by URI that are given: ``None`` is as good as none."""
    return {name: value for name, value in options.items() if value is not None}


def checked_options(
    owner: type, values: Mapping[str, Any], operation: str = "configure", path: str = ""
) -> dict[str, Any]:
    """The fields that options of a class set, checked. Where they configure, ``None`` is as good as none."""
    rows, fields = table_of(owner), dict[str, Any]()
    for name, given_value in values.items():
        row = rows[name]
        value = row.default if given_value is None and operation == "configure" else given_value
        is_none = value is row.default is None
        fields[row.target] = None if is_none else row.kind.checked(value, name, operation, path)
    return fields
