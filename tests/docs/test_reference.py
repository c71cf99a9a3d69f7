"""The tables of the documentation say what the code says: errors, options, counters, the import order."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from errno import errorcode
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from aioprefetch import errors, layers, services
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.local_files.errors import TABLE as FS_TABLE
from aioprefetch.operator.from_uri import OPERATOR_OPTIONS, elsewhere
from aioprefetch.operator.operator import Operator
from aioprefetch.options import Option, table_of
from aioprefetch.options.words import answer_of
from aioprefetch.reader.options import ReaderRows
from aioprefetch.reader.policy import POLICIES
from aioprefetch.runtime.events import COUNTERS, EVENTS
from aioprefetch.runtime.options import DiskCache
from aioprefetch.services.http.errors import STATUSES
from aioprefetch.services.s3.errors import BY_CODE, BY_STATUS
from aioprefetch.sync import open as sync_open
from aioprefetch.values import Capability
from aioprefetch.verbs.requests import WriteOptions
from tests.repository.doc_pages import PAGES, code, rows_under
from tests.repository.option_files import PARTS, described, file_text
from tests.repository.source_tree import PACKAGE, ROOT
from tests.tidy.test_imports import ORDER

DOCS = ROOT / "docs"
OPTIONS = DOCS / "reference" / "options.md"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
MEMBERSHIP = {"yes": True, "no": False}

# Tables that are written by hand; the others are generated.
TABLES: Mapping[str, Callable[..., Any]] = {
    "### TimeoutLayer": layers.TimeoutLayer,
    "### HedgeLayer": layers.HedgeLayer,
    "### ThrottleLayer": layers.ThrottleLayer,
    "### LruCacheLayer": LruCacheLayer,
}


def value_of(cell: str) -> object:
    """The value that a default's cell means: a literal of Python, a size such as ``8 MiB``, or ``required``."""
    if cell == "required":
        return inspect.Parameter.empty
    size = re.fullmatch(r"(\d+) (KiB|MiB|GiB)", cell)
    return int(size[1]) * UNITS[size[2]] if size else ast.literal_eval(code(cell))


def defaults_of(made: Callable[..., Any]) -> dict[str, object]:
    """The parameters a caller may give, with their defaults."""
    left_out = {"self", "service", "path", "unknown"}
    parameters = inspect.signature(made).parameters.values()
    return {one.name: one.default for one in parameters if not one.name.startswith("_") and one.name not in left_out}


@pytest.mark.parametrize("heading", TABLES)
def test_options_are_those_of_the_signature(heading: str) -> None:
    """Names in order, and defaults."""
    documented = {code(row[0]): value_of(row[3]) for row in rows_under(OPTIONS, heading)}
    assert documented == defaults_of(TABLES[heading])
    assert list(documented) == list(defaults_of(TABLES[heading]))


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_is_generated_from_rows_is_as_they_have_it(path: Path) -> None:
    """``python -m tests.repository.option_files`` writes it."""
    assert path.read_text("utf-8") == file_text(path)


@pytest.mark.parametrize(
    ("made", "rows"),
    [(Operator, OPERATOR_OPTIONS), (Operator.reader, table_of(ReaderRows))],
    ids=["operator", "reader"],
)
def test_signatures_that_are_spelt_out_have_the_defaults_of_the_rows(
    made: Callable[..., Any], rows: Mapping[str, Option]
) -> None:
    assert defaults_of(made) == {name: row.default for name, row in rows.items()}


def test_every_option_is_described() -> None:
    for owner in (services.S3, services.Http, services.Fs, services.Gcs, services.Azure, ReaderRows, DiskCache):
        for row, text in described(owner):
            assert text or row.given == "uri", (owner.__name__, row.name)


def test_policies_are_those_that_there_are() -> None:
    """Names, what a miss brings, the window, where the first request lies, how ranges are merged."""
    rows = rows_under(OPTIONS, "## Policies")
    documented = {code(name): row[1:] for row in rows for name in row[0].split(", ")}
    assert set(documented) == set(POLICIES)
    for name, policy in POLICIES.items():
        fill, window, first, merged = documented[name]
        assert fill.startswith("the exact range" if policy.fill == "exact" else "whole blocks")
        assert ("exact ranges from the third" in fill) == (policy.fill == "adaptive")
        assert window.startswith(policy.window)
        assert (f"{policy.request_blocks} blocks" in window) == (policy.request_blocks > 1)
        asked = {"block": "the block of the offset", "exact": "the exact range", "tail": "the tail: 1 MiB, or a block"}
        assert first.startswith(asked[policy.first])
        assert ("when the reader is entered" in first) == policy.starts_at_open
        assert merged == f"{size(policy.gap_bytes)}, {size(policy.request_bytes_max)}"


def size(count: int) -> str:
    """Bytes as the pages write them."""
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def test_options_of_a_write_are_all_there() -> None:
    """In the order of the code, in the table and in the guide."""
    documented = [code(row[0]) for row in rows_under(OPTIONS, "## Write")]
    assert documented == list(WriteOptions.__annotations__)
    rows = rows_under(DOCS / "guides" / "writing.md", "## Options of a write")
    named = [code(name).partition("=")[0] for row in rows for name in row[0].split(", ")]
    assert sorted(named) == sorted(documented)


def test_words_of_other_libraries_are_answered_as_the_page_says() -> None:
    """Each word of a cell with the option of its line, unless it is the option itself."""
    rows = rows_under(OPTIONS, "## Words of other libraries")
    answered = {
        (word, code(row[0].partition(" of ")[0])) for row in rows for word in re.findall(r"`(\w+)`", " ".join(row[1:]))
    }
    assert len(answered) > 30
    for word, option in answered:
        answer = answer_of(word, (), elsewhere())
        own = word.removeprefix("aws_")
        assert own == option or (answer is not None and answer.option == option), word


def test_sync_open_takes_what_the_page_says() -> None:
    """A mode, and some keywords of its own."""
    parameters = inspect.signature(sync_open).parameters
    assert [name for name in parameters if name != "options"] == [
        *("url", "mode", "operator"),
        *("encoding", "errors", "newline", "compression"),
    ]
    assert parameters["mode"].default == "rb"


def test_errors_are_all_there() -> None:
    """Name, Python's word for it, errno and status of each class."""
    documented = {
        code(row[0]): [code(cell) for cell in row[1:4]]
        for row in rows_under(DOCS / "reference" / "errors.md", "## The tree")
    }
    assert sorted(documented) == errors.__all__
    for name, (python, number, status) in documented.items():
        kind = getattr(errors, name)
        instance = kind("why")
        assert isinstance(instance, eval(python, {"io": __import__("io")})), name
        assert (instance.errno, instance.status) == (getattr(__import__("errno"), number), status), name


def test_counters_are_all_there() -> None:
    """In the order and the words of the vocabulary."""
    documented = {code(row[0]): row[1] for row in rows_under(DOCS / "reference" / "statistics.md", "## The counters")}
    assert documented == dict(COUNTERS)
    assert list(documented) == list(COUNTERS)


def test_events_are_all_there() -> None:
    page = DOCS / "reference" / "events.md"
    sections = ("## Requests", "## Reads", "## Blocks, windows, memory", "## Layers and services")
    cells = [row[0] for section in sections for row in rows_under(page, section)]
    named = [name for cell in cells for name in re.findall(r"`([a-z_0-9]+\.[a-z_]+)`", cell)]
    assert sorted(named) == sorted(EVENTS)


def test_the_import_order_is_the_one_that_is_enforced() -> None:
    """Lowest first."""
    text = (DOCS / "concepts" / "architecture.md").read_text("utf-8").partition("## Import order")[2]
    listed = re.findall(r"^\d+\. (.+?) — ", text, re.MULTILINE)
    assert [tuple(re.findall(r"`([\w.]+)`", line)) for line in listed] == list(ORDER)


@pytest.mark.parametrize(
    ("column", "service"),
    [
        (1, services.Memory()),
        (2, services.Fs("/data")),
        (3, services.Http("https://host/")),
        (4, services.S3(bucket="bucket")),
    ],
)
def test_capabilities_are_those_of_the_services(column: int, service: Any) -> None:
    """``yes`` and ``no`` for what is a flag, a number for what is not."""
    rows = rows_under(DOCS / "reference" / "services.md", "## What each can do")
    documented: dict[str, object] = {code(row[0]): MEMBERSHIP.get(row[column]) for row in rows}
    documented |= {
        code(row[0]): int(row[column].replace(",", "")) for row in rows if MEMBERSHIP.get(row[column]) is None
    }
    assert documented == dataclasses.asdict(service.capability)
    assert list(documented) == [field.name for field in dataclasses.fields(Capability)]


def test_the_responses_of_s3_mean_what_the_page_says() -> None:
    """Each code and status of the table, and no other."""
    documented: dict[object, str] = {}
    for responses, kind, _ in rows_under(DOCS / "reference" / "services.md", "### What S3 answers"):
        for response in responses.split(", "):
            text = code(response)
            documented[int(text) if text.isdigit() else text] = code(kind)
    actual = {response: row.kind.__name__ for table in (BY_CODE, BY_STATUS) for response, row in table.items()}
    assert documented == actual


def test_what_files_and_http_answer_means_what_the_page_says() -> None:
    """Each errno and status of the two tables, and no other."""
    for heading, table in (
        ("### What the file system answers", {errorcode[number]: row[0] for number, row in FS_TABLE.items()}),
        ("### What an HTTP server answers", {str(status): row[0] for status, row in STATUSES.items()}),
    ):
        rows = rows_under(DOCS / "reference" / "services.md", heading)
        documented = {code(response): code(kind) for responses, kind in rows for response in responses.split(", ")}
        assert documented == {response: kind.__name__ for response, kind in table.items()}


# Names of metrics, attributes and loggers, which look like those of modules.
TEXTS = "".join((PACKAGE / name).read_text("utf-8") for name in ("otel/instrumentation.py", "runtime/events.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_public_names_in_the_text_exist(page: Path) -> None:
    """``ap.something`` and ``aioprefetch.something`` in a code span can be reached by these names."""
    spans = re.findall(r"`([^`\n]+)`", page.read_text("utf-8"))
    for name in {found for span in spans for found in re.findall(r"\b(?:ap|aioprefetch)((?:\.[A-Za-z_]\w*)+)", span)}:
        if f'"aioprefetch{name}"' in TEXTS:
            continue
        try:
            resolve_name(f"aioprefetch{name}")
        except (AttributeError, ImportError) as error:
            pytest.fail(f"{page.name} names aioprefetch{name}: {error}")
