"""A URL taken apart: the literal directory, the glob below it, and the name that may be one object."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid
from aioprefetch.plan.patterns import compile_glob, literal_glob
from aioprefetch.spark.settings import SourceUrl, name_filter, source_url
from tests.profile import each_of


@each_of(
    ("text", "expected"),
    [
        ("s3://b", SourceUrl("s3://b/")),
        ("s3://b/", SourceUrl("s3://b/")),
        ("s3://b/dir/", SourceUrl("s3://b/dir")),
        ("s3://b/dir", SourceUrl("s3://b/dir", None, "s3://b/", "dir")),
        ("s3a://b/x/day.parquet", SourceUrl("s3a://b/x/day.parquet", None, "s3a://b/x", "day.parquet")),
        ("s3://b/landing/2026/*.jsonl", SourceUrl("s3://b/landing/2026", "*.jsonl")),
        ("s3://b/*/x/*.csv", SourceUrl("s3://b/", "*/x/*.csv")),
        ("s3://b/a/dt=2026-*/part-?.csv", SourceUrl("s3://b/a", "dt=2026-*/part-?.csv")),
        ("s3://b/a/b[12]/c", SourceUrl("s3://b/a", "b[12]/c")),
        ("file:///data/**", SourceUrl("file:///data", "**")),
        ("/data/x/", SourceUrl("file:///data/x")),
        ("file:/data/*.csv", SourceUrl("file:///data", "*.csv")),
        ("memory://name/a/*", SourceUrl("memory://name/a", "*")),
    ],
)
def test_the_literal_directory_and_the_glob(text: str, expected: SourceUrl) -> None:
    assert source_url(text) == expected


@each_of("text", ["s3://b/a@b:c/x", "s3://arn:aws:s3:x/a@b", "/data/a@b:c/x", "file:/a@b/x", "file:///a@b"])
def test_signs_of_users_in_paths_are_none(text: str) -> None:
    assert "a@b" in source_url(text).root


def test_a_relative_path_becomes_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert source_url("data/*.csv") == SourceUrl("file:///data", "*.csv")
    assert source_url("data").root == f"file://{os.path.abspath('data')}"


@each_of(
    ("text", "named"),
    [
        ("", "path"),
        ("  ", "path"),
        ("oss://b/x", "unknown scheme 'oss'"),
        ("hdfs:/x", "neither a URL"),
        ("s3://b*/x", "wildcard"),
        ("s3://b/{a,b}/*.csv", "braces"),
        ("https://user:pass@host/x", "user or a query"),
        ("https://host/x?sig=abc", "user or a query"),
        ("s3://AKIAUSER:pass@bucket/x", "user or a query"),
        ("S3A://AKIAUSER:pass/abc@bucket/x", "user or a query"),
        ("s3://pass@bucket/x", "user or a query"),
        ("gs://user:pass@bucket/x", "user or a query"),
        ("s3:user:pass@bucket/x", "user or a query"),
    ],
)
def test_invalid_urls_are_refused(text: str, named: str) -> None:
    with pytest.raises(ConfigInvalid, match=named) as caught:
        source_url(text)
    assert "pass" not in str(caught.value)
    assert "abc" not in str(caught.value)


@given(st.text(st.characters(codec="utf-8", exclude_characters="/\n"), min_size=1))
def test_the_glob_of_a_name_matches_it_alone(name: str) -> None:
    pattern = compile_glob(literal_glob(name))
    assert pattern.fullmatch(name)
    assert not pattern.fullmatch(name + "x")
    assert not pattern.fullmatch("x" + name)


@each_of(
    ("glob", "file_name", "takes", "refuses"),
    [
        (None, "*.csv", ("a.csv", "x/y/a.csv"), ("a.txt", "a.csv/b")),
        ("*", "*.csv", ("a.csv",), ("x/a.csv",)),
        ("d/*", "a*", ("d/a",), ("d/b", "a")),
        ("**", "a.csv", ("a.csv", "x/a.csv"), ("b.csv",)),
        ("d/**", "a", ("d/a", "d/x/a"), ("a",)),
    ],
)
def test_a_filter_of_names_narrows_the_glob(
    glob: str | None, file_name: str, takes: tuple[str, ...], refuses: tuple[str, ...]
) -> None:
    pattern = compile_glob(name_filter(glob, file_name))
    assert all(pattern.fullmatch(path) for path in takes)
    assert not any(pattern.fullmatch(path) for path in refuses)


def test_two_filters_of_names_are_refused() -> None:
    with pytest.raises(ConfigInvalid, match="give one of them"):
        name_filter("*.csv", "a*")
    with pytest.raises(ConfigInvalid, match="slash"):
        name_filter(None, "x/*.csv")
