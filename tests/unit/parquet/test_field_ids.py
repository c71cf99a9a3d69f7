"""``match="field_id"``: columns by the ids of fields, with the names of the table."""

from collections.abc import AsyncIterator, Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aioprefetch as ap
from aioprefetch import ScanFile
from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType, Unsupported
from aioprefetch.parquet import thrift
from tests.files.dataset_files import parquet_bytes
from tests.stores.gated_reader import Bench, bench
from tests.unit.parquet.parquet_files import tree_of, with_tree, written

pytestmark = pytest.mark.virtual

ROWS = 400


def field(name: str, kind: pa.DataType, number: int | None = None, **metadata: str) -> pa.Field:
    ids = {} if number is None else {"PARQUET:field_id": str(number)}
    return pa.field(name, kind, metadata=ids | metadata)


def struct(*fields: pa.Field) -> pa.StructType:
    return pa.struct(list(fields))


STORED = pa.schema(
    [
        field("a", pa.int32(), 1),
        field("b", pa.float32(), 2),
        field("s", struct(field("x", pa.int32(), 4), field("y", pa.string(), 5)), 3),
        field("l", pa.list_(field("element", struct(field("q", pa.int16(), 8)), 7)), 6),
        field("m", pa.map_(pa.string(), field("value", struct(field("v", pa.int8(), 11)), 10)), 9),
        field("c", pa.decimal128(5, 2), 12),
        field("gone", pa.string(), 13),
        field("d.e", pa.date32(), 14),
    ]
)
DATA = pa.table(
    {
        "a": range(ROWS),
        "b": [n / 2 for n in range(ROWS)],
        "s": [None if n % 7 == 0 else {"x": n, "y": f"y{n}"} for n in range(ROWS)],
        "l": [None if n % 5 == 0 else [{"q": n}] * (n % 3) for n in range(ROWS)],
        "m": [[("k", {"v": n % 100})] for n in range(ROWS)],
        "c": [Decimal(n) / 100 for n in range(ROWS)],
        "gone": [f"gone {n}" for n in range(ROWS)],
        "d.e": range(ROWS),
    },
    schema=STORED,
)

# Names change places, types are wider, fields are dropped and come back under other ids.
WANTED = pa.schema(
    [
        field("b", pa.int64(), 1),
        field("d", struct(field("e", pa.int8(), 31)), 30),
        field("t", struct(field("y", pa.int64(), 4), field("x", pa.string(), 5), field("z", pa.int8(), 32)), 3),
        field("a", pa.float64(), 2),
        field("m", pa.large_list(field("item", struct(field("r", pa.int32(), 8), field("q", pa.int32(), 33)))), 6),
        field("l", pa.map_(pa.string(), struct(field("v", pa.int8(), 34), field("w", pa.int64(), 11))), 9),
        field("s", pa.int32(), 35),
        field("c", pa.decimal128(9, 2), 12),
        field("gone", pa.int32(), 36, **{"iceberg.initial-default": "7"}),
        field("day", pa.date32(), 14),
    ]
)
EXPECTED = pa.table(
    {
        "b": range(ROWS),
        "d": [None] * ROWS,
        "t": [None if n % 7 == 0 else {"y": n, "x": f"y{n}", "z": None} for n in range(ROWS)],
        "a": [n / 2 for n in range(ROWS)],
        "m": [None if n % 5 == 0 else [{"r": n, "q": None}] * (n % 3) for n in range(ROWS)],
        "l": [[("k", {"v": None, "w": n % 100})] for n in range(ROWS)],
        "s": [None] * ROWS,
        "c": [Decimal(n) / 100 for n in range(ROWS)],
        "gone": [7] * ROWS,
        "day": range(ROWS),
    },
    schema=WANTED,
)

MAPPING = [
    {"field-id": 1, "names": ["old a", "a"]},
    {"field-id": 2, "names": ["b"]},
    {"field-id": 3, "names": ["s"], "fields": [{"field-id": 4, "names": ["x"]}, {"field-id": 5, "names": ["y"]}]},
    {
        "field-id": 6,
        "names": ["l"],
        "fields": [{"field-id": 7, "names": ["element"], "fields": [{"field-id": 8, "names": ["q"]}]}],
    },
    {
        "field-id": 9,
        "names": ["m"],
        "fields": [{"names": ["key"]}, {"names": ["value"], "fields": [{"field-id": 11, "names": ["v"]}]}],
    },
    {"field-id": 12, "names": ["c"]},
    {"field-id": 14, "names": ["d.e"]},
]


def bare(kind: Any) -> Any:
    """A type or a schema without ids."""
    if isinstance(kind, pa.Schema):
        return pa.schema([pa.field(each.name, bare(each.type)) for each in kind])
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, bare(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, bare(kind.item_type))
    return pa.list_(pa.field("element", bare(kind.value_type))) if pa.types.is_list(kind) else kind


@pytest.fixture
async def b() -> AsyncIterator[Bench]:
    async with bench() as made:
        made.put(parquet_bytes(DATA, row_group_size=50, write_page_index=True), "ids")
        made.put(parquet_bytes(DATA.cast(bare(STORED)), row_group_size=50, store_schema=False), "names")
        made.put(parquet_bytes(EXPECTED.slice(0, 3), store_schema=False), "new")
        yield made


async def read(b: Bench, path: Any = "ids", schema: pa.Schema = WANTED, **options: Any) -> pa.Table:
    return await ap.parquet.read_table(b.operator, path, schema=schema, match="field_id", **options)


@pytest.mark.parametrize(("path", "mapping"), [("ids", None), ("ids", MAPPING), ("names", MAPPING)])
async def test_columns_go_by_ids(b: Bench, path: str, mapping: Any) -> None:
    found = await read(b, path, name_mapping=mapping)
    assert found.equals(EXPECTED, check_metadata=True)
    both = await read(b, [path, "new"], name_mapping=mapping)
    assert both.equals(pa.concat_tables([EXPECTED, EXPECTED.slice(0, 3)]))
    small = await read(b, path, schema=WANTED.remove_metadata(), columns=["day", "a"], name_mapping=mapping)
    assert small.equals(EXPECTED.select(["day", "a"]))


FILTERS: list[tuple[Any, pc.Expression]] = [
    ([("day", "<", 60)], pc.field("day").cast("int32") < 60),
    (pc.field("a") < 25, pc.field("a") < 25),
    ([("b", "in", [3, 399]), ("gone", "==", 7)], pc.field("b").isin([3, 399])),
    ([("gone", "==", 8)], pc.scalar(False)),
    (pc.field("t", "y") == 5, pc.field("t", "y") == 5),
    ([("s", "==", 1)], pc.scalar(False)),
]


@pytest.mark.parametrize(("filters", "oracle"), FILTERS, ids=str)
async def test_filters_go_by_the_names_of_the_table(b: Bench, filters: Any, oracle: pc.Expression) -> None:
    given: Any = filters
    if isinstance(given, list):
        given = [(n, o, pa.scalar(v, pa.date32()).as_py() if n == "day" else v) for n, o, v in given]
    found = await read(b, filters=given, columns={"b": "b", "twice": pc.field("a") * 2, "t": "t"})
    expected = EXPECTED.filter(oracle)
    assert found["b"].equals(expected["b"])
    assert found["t"].equals(expected["t"])
    assert found["twice"].to_pylist() == [2 * value for value in expected["a"].to_pylist()]


async def test_statistics_go_by_ids(b: Bench) -> None:
    """Row groups are left out by the column that has the id, and not by that with the name."""
    for name, kind in (("c", pa.decimal128(5, 2)), ("renamed", pa.float32())):
        schema = pa.schema([field(name, kind, {"c": 12, "renamed": 2}[name]), field("b", pa.int32(), 1)])
        found = ap.parquet.scan(
            *(b.operator, "ids"), schema=schema, match="field_id", filters=[("b", "<", 60)], filter_rows=False
        )
        assert (await found.read_all()).num_rows == 100, "two row groups of eight"
    text = pa.schema([field("text", pa.large_string(), 13)])
    found = ap.parquet.scan(
        *(b.operator, "ids"), schema=text, match="field_id", filters=[("text", "==", "gone 399")], filter_rows=False
    )
    assert (await found.read_all()).num_rows == 100, "although the file has offsets of another width"


async def test_partition_values_and_rows(b: Bench) -> None:
    """Values of a catalog count before columns of the file, whose numbers of rows are those that are stored."""
    schema = pa.schema([field("b", pa.int64(), 1), field("p", pa.string()), field("a", pa.float64(), 2)])
    files = [ScanFile("ids", partition={"p": "x", "a": 0.5}, skip=[0, 2]), ScanFile("ids", partition={"p": None})]
    found = await ap.parquet.read_table(
        *(b.operator,), files=files, schema=schema, match="field_id", filters=[("b", "<", 3)], row_index_name="at"
    )
    assert found.to_pydict() == {
        "b": [1, 0, 1, 2],
        "p": ["x", None, None, None],
        "a": [0.5, 0.0, 0.5, 1.0],  # The second file has no value in the catalog, so its own count.
        "at": [1, 0, 1, 2],
    }
    found = await ap.parquet.read_table(
        b.operator, files=files, schema=schema, match="field_id", filters=[("a", ">", 199)]
    )
    assert found["b"].to_pylist() == [399]


def delta(name: str, kind: pa.DataType, physical: str | None, number: int | None = None) -> pa.Field:
    texts = {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": number and str(number)}
    return pa.field(name, kind, metadata={key: text for key, text in texts.items() if text})


@pytest.mark.parametrize("path", ["ids", "names"])
async def test_names_of_delta(b: Bench, path: str) -> None:
    """A column goes by its name within files, or by its id where the file has ids and the schema too."""
    inner = [delta("one", pa.int32(), "x", 4), delta("two", pa.string(), "y", 5)]
    schema = pa.schema(
        [delta("b", pa.int32(), "a", 1), delta("a", pa.struct(inner), "s", 3), delta("n", pa.int8(), "z", 99)]
    )
    for wanted in (schema, pa.schema([delta("b", pa.int32(), "a"), delta("a", pa.int8(), "none")])):
        found = await read(b, path, wanted)
        assert found["b"].equals(DATA["a"])
    found = await read(b, path, schema)
    assert found["a"].to_pylist()[:2] == [None, {"one": 1, "two": "y1"}]
    assert found["n"].null_count == ROWS


async def test_a_name_with_a_dot_is_no_field_of_a_struct(b: Bench) -> None:
    inner = struct(field("x", pa.int32(), 4))
    found = await read(b, schema=pa.schema([field("s", inner, 3), field("s.x", pa.int32(), 98)]))
    assert found["s.x"].null_count == ROWS


TUPLES = [
    ("l.bag.array_element", pa.list_(pa.field("array_element", pa.int32())), [[1], []]),
    ("large", pa.large_list(pa.int32()), [[1, 2], None]),
    ("fixed", pa.list_(pa.int32(), 2), [[1, 2], [3, 4]]),
]


@pytest.mark.parametrize(("name", "kind", "values"), TUPLES)
async def test_lists_of_every_kind(b: Bench, name: str, kind: pa.DataType, values: list[Any]) -> None:
    b.put(parquet_bytes(pa.table({name: pa.array(values, kind)}, schema=pa.schema([field(name, kind, 1)]))), "lists")
    found = await read(b, "lists", pa.schema([field("new", pa.list_(pa.int64()), 1), field(name, pa.int8(), 2)]))
    assert found.to_pydict() == {"new": values, name: [None] * len(values)}


@pytest.mark.parametrize("name", ["array", "l_tuple"])
async def test_lists_of_two_levels(b: Bench, name: str) -> None:
    """As older writers have them: the repeated group is the element, by its name."""
    kind = pa.list_(pa.field("element", struct(field("q", pa.int32(), 2)), nullable=False))
    values: list[Any] = [[{"q": 1}], None, [], [{"q": None}, {"q": 3}]]
    data = written(pa.table([pa.array(values, kind)], schema=pa.schema([field("l", kind, 1)])), store_schema=False)
    tree = tree_of(data)
    elements = tree[2][1].items
    elements[2][4] = (thrift.BINARY, name.encode())
    del elements[3]  # What was within it is at the same levels.
    b.put(with_tree(data, tree), "levels")
    found = await read(b, "levels", pa.schema([field("m", pa.list_(struct(field("r", pa.int64(), 2))), 1)]))
    assert found["m"].to_pylist() == [value and [{"r": each["q"]} for each in value] for value in values]


DEFAULTS: Iterable[tuple[pa.DataType, str, Any]] = [
    (pa.int64(), "5", 5),
    (pa.bool_(), "true", True),
    (pa.float32(), "1.5", 1.5),
    (pa.string(), '"x"', "x"),
    (pa.large_binary(), '"01ff"', b"\x01\xff"),
    (pa.binary(2), '"01ff"', b"\x01\xff"),
    (pa.decimal128(9, 2), '"14.20"', Decimal("14.20")),
    (pa.date32(), '"1970-01-02"', pa.scalar(1, pa.date32()).as_py()),
    (pa.timestamp("us", "UTC"), '"1970-01-01T00:00:00.000001+00:00"', pa.scalar(1, pa.timestamp("us", "UTC")).as_py()),
    (pa.list_(pa.int32()), "[1]", [1]),
]


@pytest.mark.parametrize(("kind", "text", "value"), DEFAULTS, ids=str)
async def test_initial_defaults(b: Bench, kind: pa.DataType, text: str, value: Any) -> None:
    metadata = {"PARQUET:field_id": "99", "iceberg.initial-default": text}
    added = pa.field("new", kind, nullable=False, metadata=metadata)
    found = await read(b, schema=pa.schema([field("b", pa.int32(), 1), added]), filters=[("b", "<", 2)])
    assert found["new"].to_pylist() == [value] * 2
    with pytest.raises(InvalidArgument, match=r"initial default b'\{\}' of 'new' is not"):
        await read(b, schema=pa.schema([added.with_metadata(metadata | {"iceberg.initial-default": "{}"})]))


ONE = field("a", pa.int32(), 1)
WRONG: list[tuple[str, Any, dict[str, Any], type[Exception], str]] = [
    ("names", pa.schema([ONE]), {}, Unsupported, "no field ids, and name_mapping="),
    ("ids", pa.schema([("a", pa.int32())]), {}, InvalidArgument, "no PARQUET:field_id"),
    ("ids", pa.schema([field("s", struct(pa.field("x", pa.int32())), 3)]), {}, InvalidArgument, "no PARQUET:field_id"),
    ("ids", pa.schema([field("s", struct(field("x", pa.int32(), 1)), 1)]), {}, InvalidArgument, "have one PARQUET"),
    ("ids", None, {}, ConfigInvalid, "needs schema="),
    ("ids", pa.schema([ONE]), {"match": "name", "name_mapping": []}, ConfigInvalid, 'needs match="field_id"'),
    ("ids", pa.schema([ONE]), {"match": "id"}, InvalidArgument, "match must be"),
    *(
        ("ids", pa.schema([ONE]), {"name_mapping": wrong}, InvalidArgument, "name_mapping must be")
        for wrong in ("{", 1, [1], [{"names": "ab"}], [{"field-id": 1}], [{"names": ["a"]}, {"names": ["a"]}])
    ),
    ("ids", pa.schema([field("a", struct(field("z", pa.int8(), 98)), 1)]), {}, Unsupported, "does not fit"),
    ("ids", pa.schema([field("s", pa.list_(pa.int32()), 3)]), {}, Unsupported, "does not fit"),
    ("twice", pa.schema([ONE]), {}, Unsupported, "two columns of the file have the field id 1"),
    (
        "ids",
        pa.schema([field("s", struct(field("n", pa.int8(), 99, **{"iceberg.initial-default": "1"})), 3)]),
        {},
        Unsupported,
        "the initial default of 'n'",
    ),
    ("ids", pa.schema([field("new", pa.int8(), 99).with_nullable(False)]), {}, Unsupported, "not null in the table"),
    ("ids", pa.schema([ONE]), {"extra_columns": "error"}, Unsupported, "column 'b' is not in schema="),
]


@pytest.mark.parametrize(("path", "schema", "options", "error", "text"), WRONG)
async def test_what_is_refused(
    b: Bench, path: str, schema: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    two = pa.schema([ONE, field("b", pa.int32(), 1)])
    b.put(parquet_bytes(pa.table([[1], [2]], schema=two)), "twice")
    with pytest.raises(error, match=text):
        await ap.parquet.read_table(b.operator, path, **{"schema": schema, "match": "field_id", **options})


@pytest.mark.parametrize("table", [None, 1, "t"])
def test_other_things_than_tables(table: Any) -> None:
    for find in (ap.parquet.delta_files, ap.parquet.iceberg_files):
        with pytest.raises(InvalidType, match="is needed, not"):
            find(table)
