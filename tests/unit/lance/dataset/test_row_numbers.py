"""``_rowid`` and ``_rowaddr``: pylance's numbers, the forms of stable ids, and damaged ones."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.errors import Error, InvalidArgument, Unsupported, UntrustedMetadata
from aioprefetch.lance.fragment_rows import ROW_ADDRESS, ROW_ID, RowIds, RowNumbersField
from aioprefetch.lance.manifest import Fragment
from aioprefetch.row_ranges import RowRanges
from tests.files.lance_files import PATH, damaged, dataset_objects, stored, write_file
from tests.profile import each_of, few_rows
from tests.unit.lance.protobuf import key, span, varint

lance: Any = pytest.importorskip("lance")


def number(field: int, value: int) -> bytes:
    return key(field, 0) + varint(value)


def ids(*segments: bytes) -> bytes:
    return b"".join(span(1, segment) for segment in segments)


def u16(base: int, *offsets: int) -> bytes:
    return span(1, number(1, base) + span(2, np.array(offsets, "<u2").tobytes()))


U64 = span(3, span(2, np.array([9, 1 << 63], "<u8").tobytes()))
SEGMENTS: dict[str, tuple[bytes, list[int]]] = {
    "range": (span(1, number(1, 5) + number(2, 8)), [5, 6, 7]),
    "range from 0": (span(1, number(2, 3)), [0, 1, 2]),
    "holes": (span(2, number(1, 10) + number(2, 20) + span(3, u16(10, 0, 3, 4, 9))), [11, 12, 15, 16, 17, 18]),
    "bitmap": (span(3, number(1, 100) + number(2, 110) + span(3, b"\x0d\x02")), [100, 102, 103, 109]),
    "sorted": (span(4, u16(1000, 0, 7, 65535)), [1000, 1007, 66535]),
    "u32": (span(5, span(2, number(1, 1 << 40) + span(2, np.array([5, 1 << 31], "<u4").tobytes()))), []),
    "u64": (span(5, U64), [9, 1 << 63]),
}
SEGMENTS["u32"] = SEGMENTS["u32"][0], [(1 << 40) + 5, (1 << 40) + (1 << 31)]


def test_every_form_of_stable_ids() -> None:
    chance = random.Random(4)
    for _ in range(200):
        names = chance.choices(list(SEGMENTS), k=chance.randint(1, 5))
        expected = [one for name in names for one in SEGMENTS[name][1]]
        row_ids = RowIds(ids(*(SEGMENTS[name][0] for name in names)), len(expected))
        places = sorted(chance.sample(range(len(expected)), chance.randint(0, len(expected))))
        assert row_ids.at(np.array(places, np.int64)).tolist() == [expected[place] for place in places]


@each_of(
    "segment",
    [
        b"",
        span(1, number(1, 8) + number(2, 5)),
        span(1, number(2, (1 << 64) - 1)),
        span(2, number(1, 10) + number(2, 20) + span(3, u16(10, 3, 3))),
        span(2, number(1, 10) + number(2, 20) + span(3, u16(0, 3))),
        span(2, number(1, 10) + number(2, 20) + span(3, u16(20, 0))),
        span(3, number(2, 9) + span(3, b"\xff")),
        span(4, b""),
        span(4, u16((1 << 64) - 1, 1)),
        span(4, span(3, span(2, b"123"))),
        span(4, u16(0, 1)) + span(1, number(2, 3)),
        span(1, number(2, 4)),
    ],
)
def test_damaged_ids(segment: bytes) -> None:
    with pytest.raises(UntrustedMetadata, match="ids"):
        RowIds(ids(segment), 3)


def test_unknown_ids_are_refused() -> None:
    with pytest.raises(Unsupported):
        RowIds(ids(span(6, b"")), 3)


def test_damaged_ids_end_in_numbers_or_a_typed_error() -> None:
    chance = random.Random(8)
    whole = ids(*(segment for segment, _ in SEGMENTS.values()))
    rows = sum(len(expected) for _, expected in SEGMENTS.values())
    for _ in range(2000):
        try:
            assert len(RowIds(damaged(whole, chance), rows).at(np.arange(rows))) == rows
        except Error as error:
            assert isinstance(error, (UntrustedMetadata, Unsupported))  # noqa: PT017


def test_rows_at_positions() -> None:
    chance = random.Random(5)
    for _ in range(100):
        edges = sorted(chance.sample(range(60), 2 * chance.randint(1, 6)))
        ranges = RowRanges.of(list(zip(edges[::2], edges[1::2], strict=True)))
        rows = [row for low, high in zip(edges[::2], edges[1::2], strict=True) for row in range(low, high)]
        for start in range(len(rows) + 1):
            stop = chance.randint(start, len(rows))
            assert ranges.rows_between(start, stop).tolist() == rows[start:stop]


@pytest.mark.parametrize(("identity", "rows"), [(1 << 32, 1), (1, 1 << 33)])
def test_fragments_whose_rows_have_no_address(identity: int, rows: int) -> None:
    with pytest.raises(UntrustedMetadata, match="address"):
        RowNumbersField(ROW_ADDRESS, Fragment(identity, rows, (), None), RowRanges.one(0, 1))


def test_ids_that_are_not_in_the_manifest() -> None:
    fragment = Fragment(1, 5, (), None, b"")
    with pytest.raises(Unsupported, match="not in the manifest"):
        RowNumbersField(ROW_ID, fragment, RowRanges.one(0, 1))
    assert RowNumbersField(ROW_ADDRESS, fragment, RowRanges.one(0, 1)).drain(1).decode().to_pylist() == [1 << 32]


@pytest.mark.parametrize(
    ("version", "stable"), few_rows([("2.0", True), ("2.0", False), ("2.2", True), ("2.2", False)], 3)
)
async def test_the_numbers_are_those_of_pylance(tmp_path: Path, version: str, stable: bool) -> None:
    path = tmp_path / "ds"
    table = pa.table({"id": range(1000), "v": range(1000)})
    peer = lance.write_dataset(
        table, str(path), max_rows_per_file=300, data_storage_version=version, enable_stable_row_ids=stable
    )
    peer.delete("id % 7 = 3 or id in (100, 101, 102, 103) or id between 400 and 520")
    lance.write_dataset(table.slice(0, 50), str(path), mode="append")
    peer = lance.dataset(str(path))
    peer.update({"v": "7"}, where="id % 11 = 1")
    peer.delete("id % 50 = 0")
    peer.optimize.compact_files(target_rows_per_fragment=600)
    peer.update({"v": "8"}, where="id % 2 = 1")
    chance = random.Random(1)
    async with stored(dataset_objects(path, "ds")) as operator:
        for one in range(1, peer.version + 1):
            old = lance.dataset(str(path), version=one)
            for columns in (["_rowaddr", "id", "_rowid"], ["_rowid"], ["v", "_rowaddr"]):
                expected = old.to_table(columns=columns)
                batch_rows = chance.choice([7, 100, 65536])
                found = await ap_lance.read_table(operator, "ds", version=one, columns=columns, batch_rows=batch_rows)
                assert found.equals(expected)
                assert found.schema.equals(expected.schema, check_metadata=True)
                found = await ap_lance.read_table(operator, "ds", version=one, columns=columns, rows=(100, 400))
                assert found.equals(expected.slice(100, 300))
                take = chance.choices(range(expected.num_rows), k=30)
                found = await ap_lance.read_table(operator, "ds", version=one, columns=columns, take=take)
                assert found.equals(old.take(take, columns=columns))
            limit = chance.choice(expected.column("_rowaddr").to_pylist())
            found = await ap_lance.read_table(operator, "ds", version=one, filters=[("_rowaddr", "<", limit)])
            assert found.equals(old.to_table(filter=f"_rowaddr < {limit}"))


async def test_the_numbers_alone_ask_for_no_data(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": range(10)}), str(tmp_path / "ds"), max_rows_per_file=4)
    log: list[Any] = []
    async with stored(dataset_objects(tmp_path / "ds", "ds"), log=log) as operator:
        found = await ap_lance.read_table(operator, "ds/", columns=["_rowid"], filters=pc.field("_rowaddr") > 1)
        places = [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]
        assert found.column("_rowid").to_pylist() == [fragment << 32 | place for fragment, place in places]
        assert len(log) == 1
        assert (await ap_lance.plan(operator, "ds/", columns=["_rowid", "_rowaddr"])).requests == ()
        assert (await ap_lance.read_table(operator, "ds/")).column_names == ["id"]
        assert (await ap_lance.read_table(operator, "ds/", filters=[("_rowid", "=", 1)])).column_names == ["id"]


async def test_a_file_has_no_row_numbers() -> None:
    async with stored(write_file(pa.table({"id": [1]}))) as operator:
        with pytest.raises(InvalidArgument, match="no column '_rowid'"):
            await ap_lance.read_table(operator, PATH, columns=["_rowid"])
