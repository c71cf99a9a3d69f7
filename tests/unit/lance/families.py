"""A small array of every type family, and the versions in which pylance can write it."""

import pyarrow as pa

ALL = ("2.0", "2.1", "2.2")

_struct = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int8()))])
_PLAIN = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms")),
    *(pa.time64("us"), pa.time64("ns"), *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns"))),
    *(pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("s", "+05:30")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.decimal128(12, 2), pa.decimal256(40, 4), pa.bool_()),
]

FAMILIES: dict[str, tuple[pa.Array, tuple[str, ...]]] = {
    str(one): (pa.array([1, 0, 1]).cast(pa.int32()).cast(one), ALL)
    if not pa.types.is_temporal(one)
    else (pa.array([86400000, 0, 86400000] if one == pa.date64() else [1, 0, 1], one), ALL)
    for one in _PLAIN
} | {
    "null": (pa.nulls(3), ALL),
    "string": (pa.array(["a", None, "ccc"]), ALL),
    "large_string": (pa.array(["a", None, "ccc"], pa.large_string()), ALL),
    "binary": (pa.array([b"a", None, b""]), ALL),
    "large_binary": (pa.array([b"a", None, b""], pa.large_binary()), ALL),
    "fixed_size_binary": (pa.array([b"ab"] * 3, pa.binary(2)), ALL),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ALL),
    "dictionary of int64": (pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array([5, 6])), ALL),
    "vector": (pa.array([[1, 2]] * 3, pa.list_(pa.float32(), 2)), ALL),
    "vector of vectors": (pa.array([[[1, 2]] * 2] * 3, pa.list_(pa.list_(pa.float32(), 2), 2)), ALL),
    "vector of timestamps": (pa.array([[1, 2]] * 3, pa.list_(pa.timestamp("us", "UTC"), 2)), ALL),
    "vector of decimals": (pa.array([[1, 2]] * 3, pa.list_(pa.decimal128(10, 2), 2)), ALL),
    "vector of structs": (
        pa.array([[{"x": 1, "y": 2}] * 2] * 3, pa.list_(pa.struct([("x", pa.int32()), ("y", pa.int8())]), 2)),
        ("2.0", "2.2"),
    ),
    "list": (pa.array([["a"], ["b"], []], pa.list_(pa.field("element", pa.string(), nullable=False))), ALL),
    "large list": (pa.array([[1], [2], None], pa.large_list(pa.int8())), ALL),
    "list of lists": (pa.array([[[1]], [], [[], [2]]]), ALL),
    "list of structs": (pa.array([[{"x": 1, "y": [2]}], [], []], pa.list_(_struct)), ALL),
    "large list of structs": (pa.array([[{"x": 1, "y": [2]}], [], []], pa.large_list(_struct)), ALL),
    "list of dictionaries": (pa.array([["a", "b"]] * 3, pa.list_(pa.dictionary(pa.int8(), pa.string()))), ALL),
    "list of vectors": (pa.array([[[1, 2], [2, 3]]] * 3, pa.list_(pa.list_(pa.int8(), 2))), ALL),
    "struct": (pa.array([{"x": 1, "y": {"z": 2.0}}] * 3), ALL),
    "empty struct": (pa.array([{}] * 3, pa.struct([])), ALL),
    "struct with an empty struct": (
        pa.array([{"a": {}, "b": 1}] * 3, pa.struct([("a", pa.struct([])), ("b", pa.int8())])),
        ALL,
    ),
    "map": (pa.array([[("a", 1)], [], []], pa.map_(pa.string(), pa.int32())), ("2.2",)),
    "map of structs": (pa.array([[("a", {"x": 1, "y": [2]})], [], []], pa.map_(pa.string(), _struct)), ("2.2",)),
}
