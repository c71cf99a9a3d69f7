"""Columns of a file by the ids of their fields, which a table keeps where names change.

A file with other names than the table's gets a copy of its footer with those: columns, filters, statistics and
partitions then go by name, as everywhere. Fields that the table does not have get names that it does not have either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from aioprefetch.errors import InvalidArgument, Unsupported
from aioprefetch.parquet import thrift
from aioprefetch.parquet.footer import MAGIC, Footer, parse

# Metadata of Arrow fields: the id; in a Delta table that goes by names of its own, that name; and the value of a column
# that a file lacks, in JSON as Iceberg has it.
_IDS = (b"PARQUET:field_id", b"delta.columnMapping.id")
_PHYSICAL_NAME = b"delta.columnMapping.physicalName"
INITIAL_DEFAULT = b"iceberg.initial-default"

# Fields of a FileMetaData, and of a SchemaElement.
_SCHEMA = 2
_REPETITION, _NAME, _CHILDREN, _FIELD_ID = 3, 4, 5, 9
_REPEATED = 2

_BINARY = pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary

# For each name the id, if it has one, and the names below.
NameMapping = Mapping[str, tuple[int | None, "NameMapping"]]
# ``"field_id"``, or ``"physical_name"`` for names of Delta, or both: then ids count in files with ids. And their names.
Matching = tuple[Collection[str], NameMapping | None]


def checked_mapping(given: object, path: str) -> NameMapping:
    """A name mapping, as JSON or as Iceberg's list of its entries. ``InvalidArgument`` for another form."""
    try:
        return _mapping(json.loads(given) if isinstance(given, (str, bytes)) else given)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgument(
            f'name_mapping must be [{{"field-id": 1, "names": ["a"], "fields": […]}}, …], not {given!r:.200}',
            operation="scan",
            path=path,
        ) from error


def _mapping(entries: Any) -> NameMapping:
    found: dict[str, tuple[int | None, NameMapping]] = {}
    for entry in entries:
        number, names, below = entry.get("field-id"), entry["names"], _mapping(entry.get("fields") or ())
        if isinstance(names, str) or not found.keys().isdisjoint(names):
            raise ValueError("names are in lists, and stand once")
        found.update(dict.fromkeys(names, (None if number is None else int(number), below)))
    return found


class FieldIds:
    """Finds the columns of ``schema`` in files. Those with names ``elsewhere`` need no ids.

    ``InvalidArgument`` for a schema whose fields have no ids, or have one twice.
    """

    def __init__(self, schema: pa.Schema, matching: Matching, elsewhere: Collection[str], *, path: str) -> None:
        ways, self._mapping = matching
        self._schema, self._path = schema, path
        fields = list(_nested(field for field in schema if field.name not in elsewhere))
        ids, names = [_id(field) for field in fields], [_physical_name(field) for field in fields]
        self._has_ids, self._has_names = "field_id" in ways and None not in ids, None not in names
        if not (self._has_ids or ("physical_name" in ways and self._has_names)):
            raise self._wrong("the fields of schema= have no PARQUET:field_id in their metadata")
        if self._has_ids and len({*ids}) < len(ids):
            raise self._wrong("two fields of schema= have one PARQUET:field_id")
        self._has_names = self._has_names and "physical_name" in ways
        # A name with a dot that a file lacks is null, also where the file has a struct with such a field.
        self._defaults = {field.name: pa.scalar(None, field.type) for field in schema if "." in field.name}
        self._defaults |= {field.name: self._default(field) for field in schema if INITIAL_DEFAULT in _metadata(field)}

    def _wrong(self, message: str) -> InvalidArgument:
        return InvalidArgument(message, operation="scan", path=self._path)

    def _default(self, field: pa.Field) -> pa.Scalar:
        text, kind = _metadata(field)[INITIAL_DEFAULT], field.type
        try:
            value = json.loads(text)
            if not isinstance(value, str):
                return pa.scalar(value, kind)
            is_binary = any(is_kind(kind) for is_kind in _BINARY)
            return pa.scalar(bytes.fromhex(value), kind) if is_binary else pa.scalar(value).cast(kind)
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise self._wrong(f"the initial default {text!r} of {field.name!r} is not {kind}: {error}") from error

    def defaults(self, footer: Footer) -> dict[str, pa.Scalar]:
        """The values of columns that a file, with the table's names, does not have."""
        return {name: value for name, value in self._defaults.items() if name not in footer.schema.names}

    def named(self, footer: Footer) -> Footer:
        """The footer with the names of the table.

        ``Unsupported`` for a file whose fields have no ids, if there is no name mapping, or have one twice.
        """
        raw = bytes(footer.raw)
        kind, start = next((kind, at) for kind, number, at in thrift.fields_of(raw, 0) if number == _SCHEMA)
        elements, end = thrift.read_value(raw, start, kind)
        tree = _Tree(elements.items, footer.path)
        if self._has_ids and tree.has_ids:
            tree.match(self._schema, _id, lambda place, _: tree.id(place))
        elif self._has_ids and self._mapping is not None:
            tree.match(self._schema, _id, lambda _, number: number, self._mapping)
        elif self._has_names:
            tree.match(self._schema, _physical_name, lambda place, _: tree.name(place))
        else:
            why = "the columns of the file have no field ids, and name_mapping= does not say which names have which"
            raise Unsupported(why, operation="scan", path=footer.path)
        if not tree.is_changed:
            return footer
        # A struct of one field is the header of that field, its value and the end.
        raw = raw[:start] + thrift.write_struct({1: (kind, elements)})[1:-1] + raw[end:]
        parsed = parse(memoryview(raw), memoryview(raw + len(raw).to_bytes(4, "little") + MAGIC), footer.path)
        return Footer(footer.pinned, footer.start, memoryview(raw), parsed)


class _Tree:
    """The elements of a schema, depth first, and the places of the children of each."""

    def __init__(self, elements: Sequence[thrift.Struct], path: str) -> None:
        self._elements, self._path = elements, path
        self.is_changed = False
        self._children: list[list[int]] = [[] for _ in elements]
        parents = [0] * self._number(0, _CHILDREN)
        for place in range(1, len(elements)):
            self._children[parents.pop()].append(place)
            parents += [place] * self._number(place, _CHILDREN)
        self.has_ids = any(_FIELD_ID in element for element in elements[1:])

    def _number(self, place: int, number: int) -> int:
        return int(self._elements[place].get(number, (0, 0))[1])

    def id(self, place: int) -> int | None:
        """The id of a field."""
        return self._number(place, _FIELD_ID) if _FIELD_ID in self._elements[place] else None

    def name(self, place: int) -> str:
        """The name of a field."""
        return bytes(self._elements[place][_NAME][1]).decode("utf-8", "replace")

    def _rename(self, place: int, name: str) -> None:
        before = self.name(place)
        if before != name:
            self.is_changed = True
            self._elements[place][_NAME] = (thrift.BINARY, name.encode())
            for child in self._children[place]:
                if self.name(child) == f"{before}_tuple":  # By this name readers know a list of structs.
                    self._rename(child, f"{name}_tuple")

    def match(
        self,
        fields: Iterable[pa.Field],
        wanted: Callable[[pa.Field], Hashable],
        stored: Callable[[int, int | None], Hashable],
        mapping: NameMapping | None = None,
        place: int = 0,
    ) -> None:
        """Name children by the fields with the same key: ``wanted`` of a field is ``stored`` of a place and its id."""
        mapping, found, fields = mapping or {}, dict[Hashable, tuple[int, NameMapping]](), list(fields)
        for child in self._children[place]:
            number, below = mapping.get(self.name(child), (None, {}))
            key = stored(child, number)
            if key is not None and found.setdefault(key, (child, below))[0] != child:
                why = f"two columns of the file have the field id {key}"
                raise Unsupported(why, operation="scan", path=self._path)
        taken, others = {field.name for field in fields}, {*self._children[place]}
        for field in fields:
            key = wanted(field)
            if key is not None and key in found:
                child, below = found[key]
                others.remove(child)
                self._rename(child, field.name)
                self._match_below(child, field.type, wanted, stored, below)
            elif place and INITIAL_DEFAULT in _metadata(field):
                why = f"the initial default of {field.name!r}, a field of a struct that the file lacks, is not read"
                raise Unsupported(why, operation="scan", path=self._path)
        for child in sorted(others):
            name = self.name(child)
            while name in taken or "." in name:
                name = f"{name.replace('.', '_')} (field {self.id(child)})"
            taken.add(name)
            self._rename(child, name)

    def _match_below(self, place: int, kind: pa.DataType, wanted: Any, stored: Any, mapping: NameMapping) -> None:
        """The fields below a column of type ``kind``. If it is of another, it does not fit, which a cast will tell."""
        children = self._children[place]
        inner: list[tuple[int, str, pa.DataType]] = []
        if pa.types.is_struct(kind):
            self.match(kind, wanted, stored, mapping, place)
        elif pa.types.is_map(kind) and len(children) == 1:
            pair = self._children[children[0]]
            inner = list(zip(pair, ("key", "value"), (kind.key_type, kind.item_type), strict=False))
        elif _is_list(kind):
            inner = [(self._element(place), "element", kind.value_type)]
        for child, name, of_child in inner:
            self._match_below(child, of_child, wanted, stored, mapping.get(name, (None, {}))[1])

    def _element(self, place: int) -> int:
        """The element of a list, by the rules of Parquet for lists of two and of three levels."""
        if self._number(place, _REPETITION) == _REPEATED or len(self._children[place]) != 1:
            return place
        repeated = self._children[place][0]
        inner, name = self._children[repeated], self.name(repeated)
        return repeated if len(inner) != 1 or name in ("array", f"{self.name(place)}_tuple") else inner[0]


def _metadata(field: pa.Field) -> Mapping[bytes, bytes]:
    return field.metadata or {}


def _id(field: pa.Field) -> int | None:
    texts = [_metadata(field)[key] for key in _IDS if key in _metadata(field)]
    return int(texts[0]) if texts and texts[0].isdigit() else None


def _physical_name(field: pa.Field) -> str | None:
    text = _metadata(field).get(_PHYSICAL_NAME)
    return None if text is None else text.decode()


def _nested(fields: Iterable[pa.Field]) -> Iterator[pa.Field]:
    """The fields, and those of structs within them."""
    for field in fields:
        yield field
        yield from _nested_in(field.type)


def _nested_in(kind: pa.DataType) -> Iterator[pa.Field]:
    if pa.types.is_struct(kind):
        yield from _nested(kind)
    elif pa.types.is_map(kind):
        yield from (*_nested_in(kind.key_type), *_nested_in(kind.item_type))
    elif _is_list(kind):
        yield from _nested_in(kind.value_type)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind)) and hasattr(kind, "value_type")
