"""Schemas, columns and page buffers, compared with those of pylance for the same file."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.footer import LanceFile, open_file
from aioprefetch.lance.schema import Field, arrow_type, build_fields, needed_columns, number_columns, project, walk
from tests.files.lance_files import PATH, VERSIONS, peer_reader, stored, write_file
from tests.profile import each_of
from tests.unit.lance.families import FAMILIES


def buffers(file: LanceFile) -> list[list[list[tuple[int, int]]]]:
    return [[list(page.buffers) for page in file.column(index).pages] for index in range(file.column_count)]


def peer_buffers(metadata: Any) -> list[list[list[tuple[int, int]]]]:
    return [
        [[(one.position, one.position + one.size) for one in page.buffers] for page in column.pages]
        for column in metadata.columns
    ]


async def opened(data: bytes) -> LanceFile:
    async with stored(data) as operator:
        file = await open_file(operator, PATH)
        await file.load_columns(range(file.column_count))
        return file


@pytest.mark.parametrize("family", FAMILIES)
async def test_metadata_agrees_with_pylance(family: str, tmp_path: Path) -> None:
    array, versions = FAMILIES[family]
    for version in versions:
        await check_metadata(pa.table({"c": array}), version, tmp_path)


async def check_metadata(table: pa.Table, version: str, tmp_path: Path) -> None:
    """Compare schema, columns and buffers of a file of three rows with pylance's."""
    data = write_file(table, version)
    metadata = peer_reader(data, tmp_path).metadata()
    file = await opened(data)
    assert file.schema.equals(table.schema, check_metadata=True)
    assert file.schema.equals(metadata.schema, check_metadata=True)
    assert (file.rows, file.column_count) == (3, len(metadata.columns))
    assert file.fields[0].columns == range(file.column_count)
    assert buffers(file) == peer_buffers(metadata)
    assert file.version == tuple(map(int, version.split(".")))


@pytest.mark.parametrize("version", VERSIONS)
async def test_columns_of_a_wide_file_follow_one_another(version: str, tmp_path: Path) -> None:
    columns = {name: array for name, (array, versions) in FAMILIES.items() if set(VERSIONS) <= set(versions)}
    fields = [pa.field(name, array.type, metadata={"k": "v" * 9}) for name, array in columns.items()]
    schema = pa.schema(fields, metadata={"table": "metadata"})
    data = write_file(pa.table(list(columns.values()), schema=schema), version)
    metadata = peer_reader(data, tmp_path).metadata()
    file = await opened(data)
    assert file.schema.equals(metadata.schema, check_metadata=True)
    assert file.schema.metadata == {b"table": b"metadata"}
    assert buffers(file) == peer_buffers(metadata)
    column = 0
    for one in file.fields:
        assert one.columns.start == column
        column = one.columns.stop
    assert column == file.column_count
    assert list(needed_columns(file.fields, file.version)) == list(range(column))


def shape(fields: tuple[Field, ...]) -> list[tuple[str, range]]:
    return [(one.name, one.columns) for one in walk(fields)]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.0", [("s", range(6)), ("a", range(1, 2)), ("l", range(2, 6)), ("item", range(3, 6))]),
        ("2.2", [("s", range(3)), ("a", range(1)), ("l", range(1, 3)), ("item", range(1, 3))]),
    ],
)
async def test_columns_of_nested_fields(version: str, expected: list[tuple[str, range]]) -> None:
    array = pa.array([{"a": 1, "l": [{"x": 1, "y": 2}]}])
    file = await opened(write_file(pa.table({"s": array}), version))
    assert shape(file.fields)[:4] == expected


@pytest.mark.parametrize("version", VERSIONS)
async def test_packed_structs_are_one_column_and_blobs_are_known(version: str, tmp_path: Path) -> None:
    array = pa.array([{"x": 1, "y": 2}] * 3)
    schema = pa.schema(
        [
            pa.field("p", array.type, metadata={"packed": "true"}),
            pa.field("q", array.type, metadata={"lance-encoding:packed": "true"}),
            pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
            pa.field("n", array.type),
        ]
    )
    data = write_file(pa.table([array, array, pa.array([b"x"] * 3, pa.large_binary()), array], schema=schema), version)
    file = await opened(data)
    assert [one.is_packed for one in file.fields] == [True, True, False, False]
    assert [one.is_blob for one in file.fields] == [False, False, True, False]
    assert [one.columns for one in file.fields[:3]] == [range(1), range(1, 2), range(2, 3)]
    assert buffers(file) == peer_buffers(peer_reader(data, tmp_path).metadata())


@pytest.mark.parametrize("version", VERSIONS)
async def test_extension_types_stay_in_the_metadata(version: str) -> None:
    table = pa.table({"u": pa.array([b"0123456789abcdef"], pa.uuid())})
    file = await opened(write_file(table, version))
    assert file.schema.field("u").type == pa.binary(16)
    assert file.schema.field("u").metadata[b"ARROW:extension:name"] == b"arrow.uuid"


def row(identity: int, parent: int, kind: str = "int32", name: str = "f") -> dict[str, Any]:
    return {"id": identity, "parent_id": parent, "name": name, "logical_type": kind, "nullable": True}


@each_of(
    ("rows", "message"),
    [
        ([row(1, 5)], "before its parent"),
        ([row(1, 1)], "before its parent"),
        ([row(1, -2)], "before its parent"),
        ([row(1, -1), row(1, -1)], "two fields have the id 1"),
        ([row(-2, -1)], "or it is negative"),
        ([row(0, -1, "list")], "0 child fields"),
        ([row(0, -1, "list"), row(1, 0), row(2, 0)], "2 child fields"),
        ([row(0, -1, "map"), row(1, 0, "struct")], "0 fields in its entries"),
        ([row(0, -1, "int32"), row(1, 0)], "cannot have child fields"),
        ([row(n, n - 1, "struct") for n in range(80)], "nested more than"),
        ([row(0, -1, "fixed_size_list:int8:0")], "no size"),
    ],
)
def test_refuses_schemas_that_are_no_tree(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UntrustedMetadata, match=message):
        build_fields(rows)


@each_of(
    "name",
    [
        "decimal:128:99:2",
        "decimal:128:x:2",
        "decimal:128:9",
        "fixed_size_binary:-1",
        "fixed_size_binary:99999999999",
        "fixed_size_binary:",
        "fixed_size_list:int8:99999999999999999999",
        "fixed_size_list:int8",
        "timestamp:h:-",
        "dict:string:string:false",
        "dict:string",
        "fixed_size_list:" * 40 + "int8" + ":1" * 40,
    ],
)
def test_refuses_damaged_types(name: str) -> None:
    with pytest.raises(UntrustedMetadata):
        arrow_type(name)


def test_names_types_that_are_not_known() -> None:
    for name in ("interval", "fixed_size_list:interval:4", "dict:interval:int8:false", "", "decimal:64:9:2"):
        with pytest.raises(Unsupported, match="not supported"):
            arrow_type(name)


def test_a_projection_keeps_columns_and_order() -> None:
    rows = [row(0, -1, "struct", "s"), row(1, 0, name="a"), row(2, 0, name="b"), row(3, -1, name="t")]
    for version, wanted in (((2, 0), [3, 0, 2]), ((2, 1), [2, 1])):
        fields, _ = number_columns(build_fields(rows), version)
        chosen = project(fields, ["t", "s.b", "t"])
        assert [one.name for one in chosen] == ["t", "s"]
        assert chosen[1].arrow.type == pa.struct([("b", pa.int32())])
        assert list(needed_columns(chosen, version)) == wanted
        assert project(fields, ["s", "s.b"])[0] == fields[0]
        assert project(fields, None) == fields
        assert project(fields, []) == ()
