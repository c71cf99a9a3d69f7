"""The schema of a source without a given one."""

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.errors import ConfigInvalid, NotFound, UntrustedMetadata
from aioprefetch.source.options import FailureOptions, FormatOptions
from aioprefetch.source.reading import infer_schema, list_files, planning
from aioprefetch.source.values import SourceFile
from aioprefetch.testing.conformance.suite import checks
from tests.stores.source_files import Shelf, jsonl, parquet


async def given(files: Sequence[SourceFile]) -> AsyncIterator[SourceFile]:
    for file in files:
        yield file


async def test_the_sample_is_spread_over_all_files_and_no_larger() -> None:
    async with Shelf() as shelf:
        for number in range(31):
            await shelf.put(f"{number:02}.jsonl", jsonl([{"n": number, f"c{number:02}": "x"}]))
        await shelf.put("00.empty.jsonl", b"")
        options = FormatOptions(sample_files=3)
        found = (await infer_schema(shelf.operator, list_files(shelf.operator, options), options)).schema
    assert found.equals(pa.schema([("n", pa.int64()), *((name, pa.string()) for name in ("c00", "c15", "c30"))]))
    assert len(set(shelf.seen.paths)) == 3


@pytest.mark.parametrize(("files", "small_bytes", "sampled"), [(15, 1 << 20, 15), (900, 1 << 20, 100), (900, 45, 10)])
async def test_small_files_are_sampled_in_larger_numbers(
    files: int, small_bytes: int, sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SAMPLE_SMALL_BYTES", small_bytes)
    async with Shelf() as shelf:
        listed = [await shelf.put(f"{number:04}.jsonl", jsonl([{"n": 1}])) for number in range(files)]
        await infer_schema(shelf.operator, given(listed), FormatOptions())
    seen = sorted(set(shelf.seen.paths))
    assert len(seen) == sampled
    assert (seen[0], seen[-1]) == (listed[0].key, listed[-1].key)
    places = [int(path.partition(".")[0]) for path in seen]
    assert max(after - before for before, after in itertools.pairwise(places)) <= 2 * files // sampled


async def test_a_stream_lists_no_more_keys_than_the_limit() -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"{n}.jsonl", jsonl([{f"c{n}": n}])) for n in range(5)]
        found = (await infer_schema(shelf.operator, given(files), FormatOptions(), keys_max=2)).schema
    assert found.names == ["c0", "c1"]


async def test_fields_of_all_samples_are_united() -> None:
    async with Shelf() as shelf:
        tables = [
            pa.table({"n": pa.array([1], pa.int32()), "s": pa.array(["x"]).dictionary_encode()}),
            pa.table({"t": pa.array([0], pa.timestamp("ns")), "n": pa.array([1], pa.int64())}),
        ]
        files = [await shelf.put(f"{place}.parquet", parquet(table)) for place, table in enumerate(tables)]
        found = (await infer_schema(shelf.operator, given(files), FormatOptions())).schema
        assert found.equals(pa.schema([("n", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us"))]))
        files.append(await shelf.put("2.parquet", parquet(pa.table({"n": ["x"]}))))
        with pytest.raises(UntrustedMetadata, match=r"'n' is .*give the schema"):
            await infer_schema(shelf.operator, given(files), FormatOptions())
        texts = [await shelf.put(f"{n}.jsonl", jsonl([{"n": value}])) for n, value in enumerate((1, "x", 1.5))]
        found = (await infer_schema(shelf.operator, given(texts), FormatOptions())).schema
        assert found.equals(pa.schema([("n", pa.string())]))


async def test_a_file_in_which_a_field_is_always_null_says_nothing_of_it() -> None:
    nothing: dict[str, Any] = {"n": None, "o": {}, "l": [], "s": {"x": None}, "z": None, "e": {}, "k": [None]}
    full: dict[str, Any] = {"n": 1, "o": {"a": True}, "l": [1.5], "s": {"x": "y"}, "z": None, "e": {}, "k": []}
    async with Shelf() as shelf:
        files = [await shelf.put(f"{place}.jsonl", jsonl([row])) for place, row in enumerate((nothing, full, nothing))]
        found = (await infer_schema(shelf.operator, given(files), FormatOptions())).schema
        kinds = {name: str(kind) for name, kind in zip(found.names, found.types, strict=True)}
        assert kinds == {
            "n": "int64",
            "o": "struct<a: bool>",
            "l": "list<element: double>",
            "s": "struct<x: string>",
            "z": "string",
            "e": "string",
            "k": "list<element: string>",
        }
        texts = (b"a,b,c\n", b"a,b,c\n,1,\n", b"a,b,c\n2.5,,\n")
        tables = [await shelf.put(f"{place}.csv", data) for place, data in enumerate(texts)]
        options = FormatOptions(header=True)
        found = (await infer_schema(shelf.operator, given(tables), options)).schema
        assert found.equals(pa.schema([("a", pa.float64()), ("b", pa.int64()), ("c", pa.string())]))
        found = (await infer_schema(shelf.operator, given(tables[:1]), options)).schema
        assert found.types == [pa.string()] * 3


@checks("source:Q6")
async def test_a_prefix_without_objects_names_url_and_glob() -> None:
    async with Shelf() as shelf:
        options = FormatOptions()
        files = list_files(shelf.operator, options, glob="*.jsonl")
        with pytest.raises(NotFound, match=r"no files in memory://.* with glob='\*\.jsonl'"):
            await infer_schema(shelf.operator, files, options, glob="*.jsonl")
        await shelf.put("0.jsonl", b"")
        with pytest.raises(UntrustedMetadata, match="empty"):
            await infer_schema(shelf.operator, list_files(shelf.operator, options), options)


@checks("source:Q6")
async def test_an_unreadable_schema_names_its_file() -> None:
    async with Shelf() as shelf:
        files = [
            await shelf.put("0.parquet", b"no parquet at all"),
            await shelf.put("1.parquet", parquet(pa.table({"n": [1]}))),
        ]
        with pytest.raises(UntrustedMetadata) as caught:
            await infer_schema(shelf.operator, given(files), FormatOptions())
        assert caught.value.path == "0.parquet"
        found = (
            await infer_schema(
                shelf.operator, given(files), FormatOptions(), failures=FailureOptions(on_corrupt="skip")
            )
        ).schema
        assert found.names == ["n"]
        with pytest.raises(UntrustedMetadata, match="none of 1 files"):
            await infer_schema(
                shelf.operator, given(files[:1]), FormatOptions(), failures=FailureOptions(on_corrupt="skip")
            )
        with pytest.raises(ConfigInvalid, match="format"):
            await infer_schema(shelf.operator, given([await shelf.put("k", b"x")]), FormatOptions())
