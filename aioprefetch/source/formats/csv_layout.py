"""The columns of a CSV file, and the wanted ones among them."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from aioprefetch.errors import ConfigInvalid, Error
from aioprefetch.source.columns.names import match_names
from aioprefetch.source.formats.corruption import corrupt, shown, unknown_field, warn_of_unknown
from aioprefetch.source.formats.csv_records import Quoting
from aioprefetch.source.formats.record_format import Wanted
from aioprefetch.source.options import FormatOptions

_NUMBERED = re.compile(r"_c([0-9]+)")


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """The columns of a file in order. Known columns have the spelling of the schema.

    ``header_stop`` is the position after the header, 0 without a header.
    """

    names: tuple[str, ...]
    header_stop: int

    def unknown(self, want: Wanted) -> list[str]:
        """The names of the columns that are not known fields."""
        known_names = set(want.known_fields.names)
        return [name for name in self.names if name not in known_names]

    def wanted(self, want: Wanted) -> list[pa.Field]:
        """The wanted fields that the file has, in the order of the schema."""
        return [field for field in want.schema if field.name in self.names]


def check_options(options: FormatOptions) -> None:
    """Raise ``ConfigInvalid`` for an invalid option."""
    for name in ("delimiter", "quote", "escape"):
        value = getattr(options, name)
        if value is None and name != "delimiter":
            continue
        if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n\0":
            raise ConfigInvalid(f"{name} must be one ASCII character, not {value!r}", operation="read_items")
    if options.delimiter in (options.quote, options.escape):
        raise ConfigInvalid(f"delimiter={options.delimiter!r} is the quote or the escape too", operation="read_items")
    if options.multi_line and options.line_separator is not None:
        raise ConfigInvalid("multi_line does not go with line_separator", operation="read_items")


def layout_of(
    first: bytes, stop: int, options: FormatOptions, quoting: Quoting, want: Wanted | None, path: str
) -> CsvLayout:
    """The layout defined by the first record of a file, which ends at ``stop``.

    Without a header the columns are the known fields of the schema, in order. Fields called ``_c0``, ``_c1``, …, as in
    an inferred schema, are matched by their numbers instead. ``want`` is ``None`` for a sample.
    """
    fields = split_record(quoting.doubled(first), options)
    if options.header:
        return CsvLayout(_unique(fields) if want is None else _known(fields, want, path), stop)
    schema = None if want is None else want.known_fields
    numbered = [f"_c{index}" for index in range(len(fields))]
    if schema is None or (len(schema) and all(_NUMBERED.fullmatch(name) for name in schema.names)):
        return CsvLayout(tuple(numbered), 0)
    return CsvLayout(tuple((schema.names + numbered[len(schema) :])[: len(fields)]), 0)


def split_record(record: bytes, options: FormatOptions) -> list[str]:
    """The fields of one record, which has no escaped quotes."""
    reader = csv.reader(
        [record.decode()],
        delimiter=options.delimiter,
        quotechar=options.quote,
        quoting=csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE,
    )
    csv.field_size_limit(max(csv.field_size_limit(), len(record) + 1))
    return next(reader, [])


def check_unknown(layout: CsvLayout, want: Wanted, *, path: str, is_first: bool) -> None:
    """Raise ``Unsupported`` for unknown columns under ``unknown_fields="fail"``; warn under ``warn``.

    The item with the first part of a file warns for the whole file.
    """
    unknown = layout.unknown(want)
    if unknown and want.options.unknown_fields == "fail":
        raise unknown_field(unknown[0], path=path, offset=0)
    if unknown and want.options.unknown_fields == "warn" and is_first:
        warn_of_unknown(unknown, path=path)


def ragged(expected: int, actual: int, *, path: str, offset: int) -> Exception:
    """The error for a record with more or fewer fields than the first record."""
    hint = "; fields with line breaks in quotes need multi_line" if actual < expected else ""
    return corrupt(f"a record has {actual} fields, not {expected}{hint}", path=path, offset=offset)


def _known(fields: Sequence[str], want: Wanted, path: str) -> tuple[str, ...]:
    """The names of a header, with the spelling of the schema if they differ only in case."""
    schema = want.known_fields
    try:
        wanted_names = _places(fields, schema.names)
    except Error as error:
        error.add_context(path=path)
        raise
    names = _unique(fields)
    if len(want.schema) and not wanted_names:
        raise corrupt(
            f"the header has none of the columns of the schema: it is {shown(', '.join(names))}, the schema has "
            f"{shown(', '.join(schema.names))}; set the option header to false if the file has none",
            path=path,
            offset=0,
        )
    return tuple(wanted_names.get(place, name) for place, name in enumerate(names))


def _places(fields: Sequence[str], wanted: Sequence[str]) -> dict[int, str]:
    """The wanted name of each column by its position: the name in the header, otherwise the unique name."""
    places = match_names(_named(fields), wanted)
    names = {place: name for place, name in zip(places, wanted, strict=True) if place is not None}
    missing = [name for name, place in zip(wanted, places, strict=True) if place is None]
    generated = [
        (place, name) for place, name in enumerate(_unique(fields)) if name != fields[place] and place not in names
    ]
    if missing and generated:
        for name, index in zip(missing, match_names([name for _, name in generated], missing), strict=True):
            if index is not None:
                names[generated[index][0]] = name
    return names


def _named(fields: Sequence[str]) -> list[str]:
    return [field or f"_c{index}" for index, field in enumerate(fields)]


def _unique(fields: Sequence[str]) -> tuple[str, ...]:
    """Unique names as in Spark: a column without a name is ``_c<number>``, equal names get their number appended."""
    names = _named(fields)
    counts = Counter(names)
    for index, name in enumerate(names):
        if counts[name] > 1:
            unique = f"{name}{index}"
            while unique in counts:
                unique += "_"
            counts[unique] = 1
            names[index] = unique
    return tuple(names)
