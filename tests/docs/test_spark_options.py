"""The page of Spark's options says what the table of options says: names, defaults, where each counts, values."""

from collections.abc import Mapping

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from aioprefetch.options import Choice
from aioprefetch.source.formats import format_names, formats_that_take
from aioprefetch.spark.options import OPEN_FILE_PREFIXES, PAGE, SOURCE_OPTIONS
from tests.repository.doc_pages import code, rows_under
from tests.repository.source_tree import ROOT

SECTIONS = ("Finding files", "Batches", "Formats", "Schema", "Failures", "Spark's parsers", "Cleaning", "Tasks")
WHERE = {"all": "both", "batch": "batch", "stream": "stream"}
# What a session or Spark says instead of the row's default.
OTHER_DEFAULTS: Mapping[str, object] = {"taskSlots": None, "inferSchema": False, "metadataColumns": None, "path": None}

PAGE_PATH = ROOT / PAGE
ROWS = [row for section in SECTIONS for row in rows_under(PAGE_PATH, f"## {section}")]
BY_NAME = {option.name: option for option in SOURCE_OPTIONS.values() if option.group != "parser"}


def test_every_option_is_there_once_with_default_and_place() -> None:
    assert sorted(code(row[0]) for row in ROWS) == sorted(BY_NAME)
    page = PAGE_PATH.read_text()
    assert all(f"`{one.name}`" in page for one in SOURCE_OPTIONS.values())
    for cells in ROWS:
        name, row = code(cells[0]), BY_NAME[code(cells[0])].row
        assert cells[3] == WHERE[row.scope], name
        documented = None if cells[1] == "—" else row.read(code(cells[1]) if cells[1] else "", name)
        assert documented == OTHER_DEFAULTS.get(name, row.default), name


def test_the_documented_values_are_those_of_the_rows() -> None:
    choices = {name: one.row.kind.words for name, one in BY_NAME.items() if isinstance(one.row.kind, Choice)}
    documented = {code(row[0]): tuple(map(code, row[2].split(", "))) for row in ROWS if code(row[0]) in choices}
    assert documented == choices
    (formats,) = [row[2] for row in ROWS if row[0] == "`format`"]
    assert tuple(map(code, formats.split(", "))) == format_names()


def test_the_formats_of_each_option_are_named() -> None:
    for row in ROWS:
        option = BY_NAME[code(row[0])]
        words = tuple(row[4].partition(":")[0].split(", "))
        documented = words if set(words) <= set(format_names()) else format_names()
        # Spark's parsers alone take one of them.
        formats = (formats_that_take(option.row.target) if option.group == "format" else ()) or format_names()
        assert documented == formats, option.name


def test_prefixes_of_open_file() -> None:
    assert {code(a): code(b) for a, b in rows_under(PAGE_PATH, "## openFile")} == dict(OPEN_FILE_PREFIXES)


def test_how_many_files_a_batch_has_by_default() -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from aioprefetch.spark.readers import FILES_MAX_DEFAULT

    (row,) = [row for row in ROWS if row[0] == "`maxFilesPerTrigger`"]
    assert f" {FILES_MAX_DEFAULT} where none" in row[4]
