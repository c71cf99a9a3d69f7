"""Fields that a schema does not have within the columns that it has: which there are, and their values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from aioprefetch.source.columns.names import match_names
from aioprefetch.source.columns.plain_types import plain_type


@dataclass(frozen=True, slots=True)
class Unknown:
    """What is unknown of a type: all of it (no ``kind``), or something of the fields of a struct, or of what is in it.

    ``parts`` have the names of a struct's fields, and no name in a list or the values of a map.
    """

    kind: Literal["struct", "list", "map"] | None = None
    parts: tuple[tuple[str, Unknown], ...] = ()

    def names(self, column: str) -> list[str]:
        """The names of all that is unknown, as ``c.a``, ``c[].a`` or ``c.value.a``."""
        if self.kind is None:
            return [column]
        prefix = {"struct": f"{column}.", "list": f"{column}[]", "map": f"{column}.value"}[self.kind]
        return [found for name, part in self.parts for found in part.names(prefix + name)]

    def of(self, value: Any) -> Any:
        """What is unknown of a value as Arrow gives it; ``None`` where there is nothing."""
        if self.kind is None or value is None:
            return value
        if self.kind == "struct":
            found = {name: part.of(value[name]) for name, part in self.parts}
            return {name: one for name, one in found.items() if one is not None} or None
        part = self.parts[0][1]
        if self.kind == "list":
            items = [part.of(one) for one in value]
            return items if any(one is not None for one in items) else None
        return [(key, one) for key, one in ((key, part.of(item)) for key, item in value) if one is not None] or None


def unknown_of(found: pa.DataType, known: pa.DataType) -> Unknown | None:
    """What a file's type has and the schema's does not; ``None`` for nothing. Names match as they do in conforming."""
    return _unknown_of(plain_type(found), plain_type(known))


def _unknown_of(found: pa.DataType, known: pa.DataType) -> Unknown | None:
    types = pa.types
    if types.is_struct(found) and types.is_struct(known):
        return _of_struct(found, known)
    if types.is_list(found) and types.is_list(known):
        part = _unknown_of(found.value_type, known.value_type)
        return None if part is None else Unknown("list", (("", part),))
    if types.is_map(found) and types.is_map(known):
        part = _unknown_of(found.item_type, known.item_type)
        return None if part is None else Unknown("map", (("", part),))
    return None


def _of_struct(found: pa.StructType, known: pa.StructType) -> Unknown | None:
    names = [field.name for field in found]
    fields = list(known)
    places = match_names(names, [field.name for field in fields])
    kinds = {place: field.type for place, field in zip(places, fields, strict=True) if place is not None}
    parts = []
    for place, field in enumerate(found):
        part = Unknown() if place not in kinds else _unknown_of(field.type, kinds[place])
        if part is not None:
            parts.append((field.name, part))
    return Unknown("struct", tuple(parts)) if parts else None
