"""Which columns a CSV file has, and what of them is wanted."""

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
class Layout:
    """The columns of a file in their order, those that are known under their names in the schema.

    ``header_stop`` is the place in the file behind the header, 0 without.
    """

    names: tuple[str, ...]
    header_stop: int

    def unknown(self, want: Wanted) -> list[str]:
        """The columns that nobody knows."""
        known = set(want.known_fields.names)
        return [name for name in self.names if name not in known]

    def wanted(self, want: Wanted) -> list[pa.Field]:
        """The wanted fields that the file has, in the order of the schema."""
        return [one for one in want.schema if one.name in self.names]


def check_options(options: FormatOptions) -> None:
    """``ConfigInvalid`` names an option that cannot be."""
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
) -> Layout:
    """The layout told by the first record of a file, which ends at ``stop``.

    Without a header the fields of the schema, which is all that is known of the files, are the columns in their order,
    unless these are called ``_c0``, ``_c1``, …, as a sample calls them: then the numbers count. ``want`` is ``None``
    for a sample.
    """
    fields = split_record(quoting.doubled(first), options)
    if options.header:
        return Layout(_unique(fields) if want is None else _known(fields, want, path), stop)
    schema = None if want is None else want.known_fields
    numbered = [f"_c{index}" for index in range(len(fields))]
    if schema is None or (len(schema) and all(_NUMBERED.fullmatch(name) for name in schema.names)):
        return Layout(tuple(numbered), 0)
    return Layout(tuple((schema.names + numbered[len(schema) :])[: len(fields)]), 0)


def split_record(record: bytes, options: FormatOptions) -> list[str]:
    """The fields of one record, in which no quote is escaped."""
    reader = csv.reader(
        [record.decode()],
        delimiter=options.delimiter,
        quotechar=options.quote,
        quoting=csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE,
    )
    csv.field_size_limit(max(csv.field_size_limit(), len(record) + 1))
    return next(reader, [])


def check_unknown(layout: Layout, want: Wanted, *, path: str, is_first: bool) -> None:
    """``Unsupported`` for a column that the schema does not have, where that is to fail; otherwise a warning of it.

    One for a file, from whoever has its first part.
    """
    unknown = layout.unknown(want)
    if unknown and want.options.unknown_fields == "fail":
        raise unknown_field(unknown[0], path=path, offset=0)
    if unknown and want.options.unknown_fields == "warn" and is_first:
        warn_of_unknown(unknown, path=path)


def ragged(expected: int, actual: int, *, path: str, offset: int) -> Exception:
    """A record with more or fewer fields than the first one."""
    hint = "; fields with line breaks in quotes need multi_line" if actual < expected else ""
    return corrupt(f"a record has {actual} fields, not {expected}{hint}", path=path, offset=offset)


def _known(fields: Sequence[str], want: Wanted, path: str) -> tuple[str, ...]:
    """Names of a header, those that differ from one of the schema in case alone as the schema has them."""
    schema = want.known_fields
    try:
        known = _places(fields, schema.names)
    except Error as error:
        error.add_context(path=path)
        raise
    names = _unique(fields)
    if len(want.schema) and not known:
        raise corrupt(
            f"the header has none of the columns of the schema: it is {shown(', '.join(names))}, the schema has "
            f"{shown(', '.join(schema.names))}; set the option header to false if the file has none",
            path=path,
            offset=0,
        )
    return tuple(known.get(place, name) for place, name in enumerate(names))


def _places(fields: Sequence[str], wanted: Sequence[str]) -> dict[int, str]:
    """Which wanted name each column has: that in the header, else the one that it was given to be unique."""
    found = match_names(_named(fields), wanted)
    known = {place: name for place, name in zip(found, wanted, strict=True) if place is not None}
    missing = [name for name, place in zip(wanted, found, strict=True) if place is None]
    made = [(place, name) for place, name in enumerate(_unique(fields)) if name != fields[place] and place not in known]
    if missing and made:
        for name, index in zip(missing, match_names([name for _, name in made], missing), strict=True):
            if index is not None:
                known[made[index][0]] = name
    return known


def _named(fields: Sequence[str]) -> list[str]:
    return [field or f"_c{index}" for index, field in enumerate(fields)]


def _unique(fields: Sequence[str]) -> tuple[str, ...]:
    """Names as Spark makes them unique: a nameless column is ``_c<number>``, equal ones get their number behind."""
    names = _named(fields)
    counts = Counter(names)
    for index, name in enumerate(names):
        if counts[name] > 1:
            made = f"{name}{index}"
            while made in counts:
                made += "_"
            counts[made] = 1
            names[index] = made
    return tuple(names)
