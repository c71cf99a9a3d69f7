"""The page of Spark's options says what the table of options says: names, defaults, where each counts, values."""

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from aioprefetch.source.formats import format_names, formats_that_take
from aioprefetch.source.options import (
    AdmissionOptions,
    FailureOptions,
    FormatOptions,
    ListOptions,
    PartitionOptions,
    ReadOptions,
)
from aioprefetch.spark.options import _OPTIONS, OPEN_FILE_PREFIXES, PAGE, Option
from tests.repository.doc_pages import code, rows_under
from tests.repository.source_tree import ROOT

DEFAULTS: Mapping[str, object] = {
    "list": ListOptions(),
    "admission": AdmissionOptions(),
    "partition": PartitionOptions(),
    "format": FormatOptions(),
    "failure": FailureOptions(),
    "read": ReadOptions(),
}
GROUPS = ("Finding files", "Batches", "Formats", "Schema", "Failures", "Cleaning", "Tasks", "Store")
WHERE = {"all": "both", "batch": "batch", "stream": "stream"}
# Settings of a source itself that have a default, and one that a session gives.
OWN: Mapping[str, object] = {"push_filters": False, "allow_empty": False, "clean": "off", "infer_types": False}
OF_THE_SESSION = {"taskSlots"}

PAGE_PATH = ROOT / PAGE
ROWS = [(group, row) for group in GROUPS for row in rows_under(PAGE_PATH, f"## {group}")]
BY_NAME = {option.name: option for option in _OPTIONS}


def documented_default(option: Option, cell: str) -> Any:
    """The value that a cell means, read as the option itself would be."""
    if cell == "—":
        return None
    return option.parse(option.name, code(cell) if cell else "")


def test_every_option_is_there_once() -> None:
    names = [code(row[0]) for _, row in ROWS]
    assert sorted(names) == sorted(BY_NAME)


def test_default_place_and_group() -> None:
    for group, row in ROWS:
        option = BY_NAME[code(row[0])]
        assert row[3] == WHERE[option.scope], option.name
        assert (group == "Store") == (option.group == "operator"), option.name
        if option.group in DEFAULTS and option.name not in OF_THE_SESSION and option.target not in OWN:
            default = getattr(DEFAULTS[option.group], option.target)
        else:
            default = OWN.get(option.target)
        assert documented_default(option, row[1]) == default, option.name


def test_the_documented_values_are_accepted() -> None:
    lists = 0
    for _, row in ROWS:
        option = BY_NAME[code(row[0])]
        words = row[2].split(", ")
        if len(words) > 1 and all(word.startswith("`") for word in words) and option.name != "splitFiles":
            lists += 1
            parsed = [option.parse(option.name, code(word)) for word in words]
            assert parsed == [code(word) for word in words], option.name
    assert lists > 5, "the page lists values no longer as code, separated by commas"


def test_the_formats_of_each_option_are_named() -> None:
    for _, row in ROWS:
        option = BY_NAME[code(row[0])]
        words = tuple(row[4].partition(":")[0].split(", "))
        documented = words if set(words) <= set(format_names()) else format_names()
        formats = formats_that_take(option.target) if option.group == "format" else format_names()
        assert documented == formats, option.name


def test_prefixes_of_open_file() -> None:
    assert {code(a): code(b) for a, b in rows_under(PAGE_PATH, "## openFile")} == dict(OPEN_FILE_PREFIXES)


def test_how_many_files_a_batch_has_by_default() -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from aioprefetch.spark.readers import FILES_MAX_DEFAULT

    (row,) = [row for _, row in ROWS if row[0] == "`maxFilesPerTrigger`"]
    assert f" {FILES_MAX_DEFAULT} where none" in row[4]
