"""What one column cannot be read for is its own affair: others are read, and its error names it and its type."""

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.errors import Unsupported
from tests.files.lance_files import VERSIONS, dataset_objects, stored
from tests.unit.lance.protobuf import key, span, varint

lance: Any = pytest.importorskip("lance")
lance_file: Any = pytest.importorskip("lance.file")
lance_arrow: Any = pytest.importorskip("lance.arrow")

versions = pytest.mark.parametrize("version", VERSIONS)


def written(place: Path, columns: Mapping[str, pa.Array] | pa.Table, version: str) -> dict[str, bytes]:
    """The objects of a dataset."""
    table = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
    lance.write_dataset(table, str(place), data_storage_version=version)
    return dataset_objects(place, "ds")


def file_table(place: Path) -> pa.Table:
    """The data file of a dataset as pylance's reader of files has it: types of extensions as they are stored."""
    (path,) = (place / "data").iterdir()
    return lance_file.LanceFileReader(str(path)).read_all().to_table()


# --- types of extensions ----------------------------------------------------------------------------------------------

JSON = pa.array(['{"a": [1, 2.5]}', None, "[]"], pa.json_())
EXTENSIONS: dict[str, pa.Array] = {
    "json": JSON,
    "json in a struct": pa.StructArray.from_arrays([JSON, pa.array([1, 2, 3])], ["j", "k"]),
    "json in a list": pa.ListArray.from_arrays([0, 2, 3, 3], JSON.take([0, 2, 2])),
    "uuid": pa.array([b"a" * 16, None, b"b" * 16], pa.uuid()),
    "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8())),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [2]), pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2))
    ),
    "bfloat16": lance_arrow.bfloat16_array([1.5, None, 2.5]),
    "bfloat16 in a list": pa.FixedSizeListArray.from_arrays(lance_arrow.bfloat16_array([1.5] * 6), 2),
}


@versions
@pytest.mark.parametrize("name", EXTENSIONS)
async def test_types_of_extensions_come_as_they_are_stored(tmp_path: Path, version: str, name: str) -> None:
    objects = written(tmp_path / "ds", {"c": EXTENSIONS[name], "i": pa.array([1, 2, 3])}, version)
    expected = file_table(tmp_path / "ds")
    async with stored(objects) as operator:
        assert (await ap_lance.read_table(operator, "ds", columns=["i"]))["i"].to_pylist() == [1, 2, 3]
        found = await ap_lance.read_table(operator, "ds")
        found.validate(full=True)
        taken = await ap_lance.read_table(operator, "ds", columns=["c"], take=[2, 0, 2])
        filtered = await ap_lance.read_table(operator, "ds", columns=["c"], filters=[("i", ">", 1)])
    values = [_storage(value) for value in expected["c"].to_pylist()]
    assert found["c"].to_pylist() == values
    assert taken["c"].to_pylist() == [values[2], values[0], values[2]]
    assert filtered["c"].to_pylist() == values[1:]
    if name == "json":
        assert found.schema.field("c").type == pa.large_binary()
        assert found.schema.field("c").metadata[b"ARROW:extension:name"] == b"lance.json"


def _storage(value: Any) -> Any:
    """A value of an extension type, as Python has it, by its storage."""
    if isinstance(value, list):
        return [_storage(item) for item in value]
    if isinstance(value, bool):
        return int(value)
    if type(value).__name__ == "BFloat16":
        return struct.pack("<f", float(str(value)))[2:]
    return getattr(value, "bytes", value)


# --- unknown types ----------------------------------------------------------------------------------------------------

NESTED = {
    "j": JSON,
    "s": pa.StructArray.from_arrays([JSON, pa.array([1, 2, 3])], ["j", "k"]),
    "l": pa.ListArray.from_arrays([0, 1, 2, 3], JSON),
    "i": pa.array([1, 2, 3]),
}


@versions
async def test_an_unknown_type_refuses_its_column_alone(tmp_path: Path, version: str) -> None:
    objects = written(tmp_path / "ds", NESTED, version)
    later = {path: data.replace(b"json", b"jolt") for path, data in objects.items()}
    (file,) = (path for path in later if "/data/" in path)
    async with stored(later) as operator:
        for place in ("ds", file):
            for columns in (["i"], ["s.k", "i"], ["i", "s.k"]):
                found = await ap_lance.read_table(operator, place, columns=columns, filters=[("i", ">", 1)])
                assert found["i"].to_pylist() == [2, 3]
            assert (await ap_lance.read_table(operator, place, columns=["s.k"]))["s"].to_pylist()[2] == {"k": 3}
            refused: list[Any] = [("j", ["i", "j"]), ("j", None), ("s.j", ["s"]), ("s.j", ["s.j"]), ("l.item", ["l"])]
            for name, columns in refused:
                with pytest.raises(Unsupported, match=f"column '{name}' is of the type 'jolt'"):
                    await ap_lance.read_table(operator, place, columns=columns)
            with pytest.raises(Unsupported, match="column 'j' is of the type 'jolt'"):
                await ap_lance.read_table(operator, place, columns=["i"], filters=[("j", "==", None)])
        dataset = await ap_lance.open_dataset(operator, "ds")
        assert dataset.schema.names == ["j", "s", "l", "i"]
        assert (await dataset.take([2, 0], columns=["i"]))["i"].to_pylist() == [3, 1]


async def test_a_map_of_unknown_keys(tmp_path: Path) -> None:
    maps = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32()))
    objects = written(tmp_path / "ds", {"m": maps, "i": pa.array([1, 2])}, "2.2")
    later = {path: data.replace(b"*\x06string", b"*\x06strong") for path, data in objects.items()}
    assert later != objects
    async with stored(later) as operator:
        assert (await ap_lance.read_table(operator, "ds", columns=["i"]))["i"].to_pylist() == [1, 2]
        with pytest.raises(Unsupported, match=r"column 'm\..*' is of the type 'strong'"):
            await ap_lance.read_table(operator, "ds", columns=["m"])


# --- packed structs ---------------------------------------------------------------------------------------------------


def packed_table(rows: int = 50) -> pa.Table:
    kind = pa.struct([pa.field(name, pa.uint32(), nullable=False) for name in "xyz"])
    packed = pa.field("p", kind, metadata={"packed": "true"})
    rows_of = pa.array([{"x": n, "y": 2 * n, "z": 3 * n} for n in range(rows)], kind)
    outer = pa.StructArray.from_arrays([rows_of, pa.array(range(rows))], fields=[packed, pa.field("k", pa.int64())])
    return pa.table([rows_of, outer, pa.array(range(rows))], pa.schema([packed, ("o", outer.type), ("i", pa.int64())]))


@versions
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["p.x"], lambda n: {"p": {"x": n}}),
        (["p.z"], lambda n: {"p": {"z": 3 * n}}),
        (["p.z", "p.x", "i"], lambda n: {"p": {"x": n, "z": 3 * n}, "i": n}),
        (["i", "o.p.y"], lambda n: {"i": n, "o": {"p": {"y": 2 * n}}}),
        (["o.k", "p.y"], lambda n: {"o": {"k": n}, "p": {"y": 2 * n}}),
    ],
)
async def test_fields_of_packed_structs(
    tmp_path: Path, version: str, columns: list[str], expected: Callable[[int], Any]
) -> None:
    async with stored(written(tmp_path / "ds", packed_table(), version)) as operator:
        for options, rows in (
            ({}, range(50)),
            ({"rows": (7, 30), "batch_rows": 4}, range(7, 30)),
            ({"take": [9, 3, 9]}, [9, 3, 9]),
            ({"filters": [("i", ">=", 40)]}, range(40, 50)),
        ):
            scan = ap_lance.scan(operator, "ds", columns=columns, **options)
            schema = await scan.schema()
            found = await scan.read_all()
            assert found.to_pylist() == [expected(n) for n in rows]
            assert found.schema.equals(schema)


# --- lists of fixed size ----------------------------------------------------------------------------------------------


def nulls(kind: pa.DataType) -> dict[str, pa.Array]:
    """Columns of lists of ``kind`` of fixed size whose items are all null, as pylance writes them."""
    pair = pa.list_(kind, 2)
    return {
        "null lists": pa.array([None] * 40, pair),
        "null items": pa.array([[None, None]] * 40, pair),
        "both": pa.array([[None, None], None] * 20, pair),
        "lists of lists": pa.array([None, [None, None, None]] * 20, pa.list_(pair, 3)),
        "in a struct": pa.array([{"f": None, "k": 1}, None] * 20, pa.struct([("f", pair), ("k", pa.int8())])),
        "in lists": pa.array([[None, None], [], None, [None]] * 10, pa.list_(pair)),
    }


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.null()], ids=str)
async def test_lists_of_fixed_size_of_nulls(tmp_path: Path, version: str, kind: pa.DataType) -> None:
    columns = nulls(kind)
    if pa.types.is_null(kind):
        columns = {name: columns[name] for name in ("null lists", "null items", "both")}
    place = tmp_path / "ds"
    written(place, columns, version)
    peer = lance.write_dataset(pa.table(columns).slice(0, 5), str(place), mode="append").to_table()
    async with stored(dataset_objects(place, "ds")) as operator:
        for batch_rows in (7, 65536):
            found = await ap_lance.read_table(operator, "ds", batch_rows=batch_rows)
            found.validate(full=True)
            assert found.to_pylist() == peer.to_pylist()
            assert found.schema.equals(peer.schema)
        taken = await ap_lance.read_table(operator, "ds", take=[41, 3, 41])
        assert taken.to_pylist() == peer.take([41, 3, 41]).to_pylist()
        part = await ap_lance.read_table(operator, "ds", rows=(30, 43))
        assert part.to_pylist() == peer.slice(30, 13).to_pylist()


async def test_those_that_no_reader_knows_are_named(tmp_path: Path) -> None:
    columns = {"f": pa.array([None] * 5, pa.list_(pa.string(), 2)), "i": pa.array(range(5))}
    async with stored(written(tmp_path / "ds", columns, "2.0")) as operator:
        assert (await ap_lance.read_table(operator, "ds", columns=["i"])).num_rows == 5
        with pytest.raises(Unsupported, match="string are not supported") as caught:
            await ap_lance.read_table(operator, "ds", columns=["f"])
        assert "field: f" in str(caught.value)


# --- before 2024 ------------------------------------------------------------------------------------------------------


def fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The number, the kind and the content of each field of a message."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            at += 1
            value |= (data[at - 1] & 0x7F) << shift
            shift += 7
            if data[at - 1] < 0x80:
                return value

    while at < len(data):
        tag = number()
        start = at
        size = {0: None, 1: 8, 5: 4, 2: -1}[tag & 7]
        if size is None:
            number()
        else:
            length = number() if size < 0 else size
            start, at = at, at + length
        yield tag >> 3, tag & 7, data[start:at]


def without(data: bytes, gone: Mapping[int, Any]) -> bytes:
    """A message without the fields whose numbers lead to ``None``; others lead to what is left out below them."""
    out = b""
    for number, kind, content in fields(data):
        if number in gone and gone[number] is None:
            continue
        content = without(content, gone[number]) if number in gone else content
        out += span(number, content) if kind == 2 else key(number, kind) + content
    return out


async def test_datasets_of_before_2024_are_of_another_format(tmp_path: Path) -> None:
    """Their manifests tell neither the format, nor versions and columns of files."""
    objects = written(tmp_path / "ds", {"i": pa.array([1, 2])}, "2.0")
    (path,) = (path for path in objects if path.endswith(".manifest"))
    data = objects[path]
    start = struct.unpack("<Q", data[-16:-8])[0]
    (length,) = struct.unpack("<I", data[start : start + 4])
    old = without(data[start + 4 : start + 4 + length], {2: {2: dict.fromkeys((3, 4, 5, 6))}, 15: None})
    assert varint(length) != varint(len(old))
    objects[path] = data[:start] + struct.pack("<I", len(old)) + old + data[-16:]
    async with stored(objects) as operator:
        with pytest.raises(Unsupported, match=r"'lance' '0.1' are not supported; lance 2.0 to 2.2 are"):
            await ap_lance.read_table(operator, "ds")
