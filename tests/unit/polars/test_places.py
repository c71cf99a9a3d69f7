"""URLs of a scan: the store that they name, and the paths in it."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import aioprefetch as ap
from aioprefetch.errors import ConfigInvalid, InvalidType, NotFound
from aioprefetch.polars.scan_parquet import place_of

KEYS = {"region": "us-east-1", "access_key_id": "a", "secret_access_key": "b"}


@pytest.mark.parametrize(
    ("source", "root", "paths"),
    [
        ("file:///data/t/a.parquet", "/data/t", "a.parquet"),
        ("file:///data/t/", "/data/t", ""),
        ("file:///data/t", "/data", "t"),
        ("file:///a.parquet", "/", "a.parquet"),
        ("file:///data/*/a?.parquet", "/data", "*/a?.parquet"),
        ("file:///data/year=2024/month=5/*.parquet", "/data", "year=2024/month=5/*.parquet"),
        (Path("/data/t/a.parquet"), "/data/t", "a.parquet"),
        (["file:///data/a/b/1.parquet", Path("/data/a/c/2.parquet")], "/data/a", ["b/1.parquet", "c/2.parquet"]),
        (["file:///data/a/", "file:///data/a/b/"], "/data/a", ["", "b/"]),
        ("memory://name/a/b.parquet", "name", "a/b.parquet"),
        ("memory://name/t/**/*.parquet", "name", "t/**/*.parquet"),
        ("memory://name", "name", ""),
    ],
    ids=str,
)
def test_where_a_url_leads(source: Any, root: str, paths: Any) -> None:
    operator, found = place_of(source, {})
    assert found == paths
    assert operator.info.scheme in ("file", "memory")
    assert root == (operator.info.root or operator.info.name)


def test_where_a_url_of_a_server_leads() -> None:
    """Over HTTP nothing is listed, so a path is what it says, and a query stays with the store."""
    operator, path = place_of("s3://bucket/t/year=2024/*.parquet", KEYS)
    assert (operator.info.scheme, path) == ("s3", "t/year=2024/*.parquet")
    _, path = place_of("https://host/a%20b/c[1].parquet?token=x", {})
    assert path == "a b/c[[]1].parquet"
    _, paths = place_of(["https://host/a/1.parquet", "https://host/b/2.parquet"], {})
    assert paths == ["a/1.parquet", "b/2.parquet"]
    _, path = place_of("https://host/a%2Fb/c.parquet", {})
    assert path == "c.parquet"


async def test_equal_options_share_a_runtime(tmp_path: Path) -> None:
    """Connections and memory, as those of all files that are opened by URL."""
    one, _ = place_of(tmp_path / "a.parquet", {})
    other, _ = place_of(f"file://{tmp_path}/b.parquet", {})
    apart, _ = place_of(f"file://{tmp_path}/b.parquet", {"memory_bytes": 32 << 20})
    assert one.runtime() is other.runtime()
    assert one.runtime() is not apart.runtime()
    for operator in (one, other, apart):
        await operator.aclose()


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("data/a.parquet", ConfigInvalid, "pathlib.Path"),
        ("s4://bucket/a", ConfigInvalid, "s4"),
        ("file://host/a.parquet", ConfigInvalid, "three slashes"),
        (["memory://a/x", "memory://b/y"], ConfigInvalid, r"polars\.concat"),
        (["memory://a/x", Path("/b/y")], ConfigInvalid, "one store"),
        ([], InvalidType, "at least one"),
        (5, InvalidType, "a URL or a list of URLs"),
        ([5], InvalidType, "a URL must be a string"),
        (b"memory://a/x", InvalidType, "a URL or a list of URLs"),
    ],
    ids=str,
)
def test_what_is_no_place(source: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ap.polars.scan_parquet(source)


def test_no_secret_of_a_url_is_shown() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        ap.polars.scan_parquet(["https://user:geheim@host/a", "memory://b/y"])
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"n_rows": 5}, "head"),
        ({"hive_partitioning": False}, "partitioning"),
        ({"storage_options": {}}, "endpoint_url"),
        ({"low_memory": True}, "budget_bytes"),
        ({"memory_byte": 5}, "memory_bytes"),
    ],
    ids=str,
)
def test_words_of_polars_are_answered(option: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigInvalid, match=words):
        ap.polars.scan_parquet("memory://places/a.parquet", **option)


def test_options_of_a_store_do_not_go_with_an_operator() -> None:
    operator = ap.Operator.from_uri("memory://places")
    with pytest.raises(ConfigInvalid, match=r"Operator\.from_uri"):
        ap.polars.scan_parquet("a.parquet", operator=operator, memory_bytes=5)
    with pytest.raises(ConfigInvalid, match="batch_rows"):
        ap.polars.scan_parquet("a.parquet", operator=operator, batch_rows=0)


@pytest.mark.parametrize("source", ["none.parquet", "none/", "none/*.parquet", "none", ["none.parquet"]])
def test_what_is_not_there(source: Any) -> None:
    """At the call, where a query is still far away."""
    with pytest.raises(NotFound, match="none"):
        ap.polars.scan_parquet(source, operator=ap.Operator.from_uri("memory://places"))


def test_files_on_this_machine(tmp_path: Path) -> None:
    """A file, a directory, a glob, a list, with names of odd characters."""
    frame = pl.DataFrame({"a": [1, 2, 3], "a.b": ["x", "y", "z"]})
    odd = tmp_path / "a[1] ü%20"
    (odd / "year=2024").mkdir(parents=True)
    frame.write_parquet(odd / "year=2024" / "part.parquet")
    for source in (odd, f"file://{tmp_path}/*/", [f"file://{tmp_path}/*/year=2024/part.parquet"]):
        found = ap.polars.scan_parquet(source)
        assert found.collect().equals(frame.with_columns(year=pl.lit(2024, pl.Int32)))
        assert found.filter(pl.col("year") == 1).collect().is_empty()
        assert found.select("a.b").collect().equals(frame.select("a.b"))
    assert ap.polars.scan_parquet(tmp_path, partitioning=None).collect().equals(frame)


@pytest.mark.parametrize("name", ["[1].parquet", "a*.parquet", "[x]/?.parquet"])
def test_a_path_is_a_name_and_no_pattern(tmp_path: Path, name: str) -> None:
    named = tmp_path / name
    for path, value in (
        (named, 1),
        (tmp_path / "1.parquet", 2),
        (tmp_path / "ab.parquet", 3),
        (tmp_path / "x/y.parquet", 4),
    ):
        path.parent.mkdir(exist_ok=True)
        pl.DataFrame({"x": [value]}).write_parquet(path)
    operator = ap.Operator.from_uri(f"file://{tmp_path}")
    frames = [
        ap.polars.scan_parquet(named),
        ap.polars.scan_parquet([named]),
        ap.polars.scan_parquet(Path(name), operator=operator),
        ap.polars.scan_parquet([Path(name)], operator=operator),
    ]
    assert [frame.collect()["x"].to_list() for frame in frames] == [[1]] * 4
    named.unlink()
    for frame in frames[1:4:2]:
        with pytest.raises(NotFound):
            frame.collect()
