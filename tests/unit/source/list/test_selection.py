"""The files of a source: the literal part of globs, and the selection from a listing."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import InvalidArgument
from aioprefetch.plan.patterns import compile_glob, literal_prefix
from aioprefetch.source.list.pages import Selection, file_of
from aioprefetch.values import Entry
from tests.profile import each_of


@each_of(
    ("glob", "prefix"),
    [
        ("*.json", ""),
        ("**/*.json", ""),
        ("2026/*/a.json", "2026/"),
        ("2026/part-?.json", "2026/part-"),
        ("2026/a.json", "2026/a.json"),
        ("a[0-9]", "a"),
        ("a[!x]", "a"),
        ("a[*]b*", "a*b"),
        ("a[]]b", "a]b"),
        ("", ""),
    ],
)
def test_literal_prefix(glob: str, prefix: str) -> None:
    assert literal_prefix(glob) == prefix


@given(st.text("ab*?[]!/", max_size=8), st.text("ab*[]!/", max_size=8))
def test_matching_paths_begin_with_the_literal_prefix(glob: str, path: str) -> None:
    if is_glob(glob) and compile_glob(glob).fullmatch(path):
        assert path.startswith(literal_prefix(glob))


@given(st.text("ab*?[]!/", max_size=8))
def test_a_glob_without_special_characters_is_its_own_prefix(glob: str) -> None:
    """And one that is longer than its prefix matches something else, too."""
    if literal_prefix(glob) == glob:
        assert compile_glob(glob).fullmatch(glob)


def is_glob(glob: str) -> bool:
    """Whether a text is a pattern at all: a bracket may be without its end."""
    try:
        compile_glob(glob)
    except InvalidArgument:
        return False
    return True


@each_of(("glob", "listed"), [(None, ""), ("a/b*.csv", "a/b"), ("a/b/c", "a/b/c"), ("**", "")])
def test_what_all_files_begin_with_is_listed(glob: str | None, listed: str) -> None:
    assert Selection(glob).prefix == listed


def test_files_are_taken_and_directories_are_not() -> None:
    selection = Selection("a/**")
    assert [path for path in ("a/b", "a/b/", "a/", "b") if selection.takes(path)] == ["a/b"]


def test_an_entry_becomes_a_file_with_its_time_in_milliseconds() -> None:
    modified = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    found = file_of(Entry(path="k", size=3, etag="e", version="v", last_modified=modified))
    assert found.to_json() == ["k", 3, "e", "v", 1_767_323_045_678]
    assert file_of(Entry(path="k", size=0)).modified_ms is None


@each_of(
    ("glob", "path", "takes"),
    [
        ("2024-*", "2024-01/a.csv", True),
        ("2024-*", "2024-01", True),
        ("2024-*", "2024-01/k=1/j=2/a.csv", True),
        ("2024-*", "2024-01/x/a.csv", False),
        ("2024-*", "2023-01/2024-1/a.csv", False),
        ("2024-*", "2024-01/_SUCCESS", False),
        ("2024-*/*", "2024-01/x/a.csv", True),
        ("*.csv", "a.csv", True),
        ("*.csv", "x/a.csv", False),
        ("k=*", "k=1/a.csv", True),
        ("**/*.csv", "x/y/a.csv", True),
        ("a.csv", "a.csv", True),
        ("a.csv", "a.csv/b", False),
        ("a[*].csv", "a*.csv/b", False),
    ],
)
def test_a_glob_that_matches_a_directory_takes_its_files_as_in_spark(glob: str, path: str, takes: bool) -> None:
    assert Selection(glob).takes(path) is takes
