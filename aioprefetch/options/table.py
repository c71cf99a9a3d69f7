"""Rows: one for each option, at the field of the class that holds its value; everything else is derived from them.

``region: str | None = option(None, REGION, also="boto3:region_name hadoop:endpoint.region")`` is a whole option: its
type, its default, its kind and the words of other libraries for it. Its documentation is its paragraph in the docstring
of the class. ``table_of`` has the rows of a class and its bases. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field
from types import MappingProxyType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, excerpt
from aioprefetch.options.kinds import FLAG, OBJECT, SECRET, TEXT, Checked, Integer, Kind, Seconds, Size

T = TypeVar("T")
# Where an option is given: by a URI's keywords and the recipe, as a part of the URI, or in the recipe alone.
Given = Literal["keyword", "uri", "recipe"]
# What an option of a source is for.
Scope = Literal["all", "batch", "stream"]

PREFIX = "AIOPREFETCH_"
_ROW = "option"


class Option(NamedTuple):
    """A row. ``name`` is what callers write, ``target`` the field that it sets.

    ``also`` has the words of other libraries, each as ``library:word,word``: ``fsspec`` for s3fs, gcsfs and adlfs;
    ``boto3``; ``obstore``; ``hadoop`` for ``fs.s3a.*`` without that; ``spark`` for another name than that in camel
    case; ``other``. ``hint`` follows ours where such a word is answered. ``has_variable``: there is a variable of the
    environment, and a form on the command line.
    """

    name: str
    kind: Kind
    default: Any = MISSING
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

    def read(self, text: str, shown: str) -> Any:
        """The value of a text, not checked further. ``shown`` is what messages call the option."""
        try:
            return self.kind.parsed(text)
        except (ValueError, ConfigInvalid):
            raise self.no_value(text, shown) from None

    def value_of(self, text: str, shown: str) -> Any:
        """The value of a text, checked and not yet as it is kept. ``ConfigInvalid`` for a text that is none."""
        value = self.read(text, shown)
        try:
            self.kind.checked(value, shown)
        except ConfigInvalid:
            if isinstance(self.kind, Checked):
                raise
            raise self.no_value(text, shown) from None
        return value

    def no_value(self, text: str, shown: str) -> ConfigInvalid:
        """The error for a text that is no value. It does not show what may be secret."""
        said = "" if self.kind.is_secret else f"={excerpt(text)!r}"
        return ConfigInvalid(f"{shown}{said} is not {self.kind.right_text}", operation="configure")


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
    """The row of a field with this default; ``name`` where it is not that of the field. ``of_field``: see ``field``."""
    row = Option(name, kind, default, also, hint, doc, given, scope, has_variable and kind.is_text)
    return field(default=default, metadata={_ROW: row}, **of_field)


def in_uri(kind: Kind, doc: str = "") -> dict[str, Option]:
    """The ``metadata`` of a field without a default, which stands in the URI."""
    return {_ROW: Option("", kind, doc=doc, given="uri", has_variable=False)}


def table_of(owner: type) -> Mapping[str, Option]:
    """The rows of a class and its bases by name, in order.

    A class without any is asked for its ``uri_options``, whose kinds follow from the annotations.
    """
    return _table_of(owner)


@functools.cache
def _table_of(owner: Any) -> Mapping[str, Option]:
    rows: dict[str, Option] = {}
    for base in reversed(owner.__mro__):
        own: Mapping[str, Any] = vars(base).get("__dataclass_fields__") or vars(base)
        for target, made in own.items():
            row = made.metadata.get(_ROW) if isinstance(made, Field) else None
            if row is not None:
                annotation = row.kind.annotation or base.__annotations__.get(target, row.annotation)
                row = row._replace(name=row.name or target, target=target, annotation=str(annotation))
                rows[row.name] = row if target in base.__annotations__ else rows.get(row.name, row)
    return MappingProxyType(rows or {row.name: row for row in _annotated(owner)})


def _annotated(owner: type) -> Iterator[Option]:
    hints = get_type_hints(owner)
    for name in getattr(owner, "uri_options", ()):
        types = _members(hints.get(name))
        number: Kind = Size() if "bytes" in name else Integer()
        kinds = {Secret: SECRET, bool: FLAG, int: number, float: Seconds(zero=True), str: TEXT}
        kind = next((kinds[form] for form in kinds if form in types), OBJECT)
        yield Option(name, kind, None, has_variable=kind.is_text, target=name)


def _members(hint: Any) -> set[Any]:
    """The types of a union, of a ``Literal`` that of its values."""
    if get_origin(hint) in (Union, UnionType):
        return {member for part in get_args(hint) for member in _members(part)}
    return {type(value) for value in get_args(hint)} if get_origin(hint) is Literal else {hint}


@functools.cache
def _checks(owner: Any) -> tuple[tuple[str, Any, Any], ...]:
    return tuple((row.target, row.default, row.kind.checked) for row in table_of(owner).values())


def check(options: Any, shown: str = "{}") -> None:
    """Check the fields of frozen options by their rows, and keep what the kinds make of them.

    ``None`` is as good as none where there is a default. ``shown`` is how messages call an option of this name.
    """
    for target, default, checked in _checks(type(options)):
        value = getattr(options, target)
        if value is default:
            continue
        kept = default if value is None and default is not MISSING else checked(value, shown.format(target))
        if kept is not value:
            object.__setattr__(options, target, kept)


def checked_options(
    owner: type, given: Mapping[str, Any], operation: str = "configure", path: str = ""
) -> dict[str, Any]:
    """The fields that options of a class set, checked; ``None`` is as good as none."""
    fields: dict[str, Any] = {}
    for name, row in table_of(owner).items():
        if name in given:
            value = row.default if given[name] is None else given[name]
            fields[row.target] = None if value is None else row.kind.checked(value, name, operation, path)
    return fields
