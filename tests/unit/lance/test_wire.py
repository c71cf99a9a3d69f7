"""The wire parser against a separate encoder, and with bytes that are not messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.wire import DEPTH_MAX, FieldRule, MessageTable, message, one_of, parse, uint
from tests.profile import each_of
from tests.unit.lance.protobuf import key, span, varint

INNER = MessageTable("Inner", {1: uint("count"), 2: FieldRule("text", "text")})
TABLE = MessageTable(
    "Outer",
    {
        1: uint("number"),
        2: FieldRule("signed", "int"),
        3: FieldRule("flag", "bool"),
        4: FieldRule("name", "text"),
        5: FieldRule("blob", "bytes"),
        6: message("inner", INNER),
        7: message("many", INNER, repeated=True),
        8: uint("packed", repeated=True),
        9: FieldRule("map", "map"),
        10: FieldRule("eight", "fixed64"),
        11: FieldRule("four", "fixed32"),
        12: FieldRule("names", "text", repeated=True),
        536870911: uint("last"),
    },
)
LOOP = MessageTable("Loop")
LOOP.rules[1] = message("loop", LOOP)


def inner(value: dict[str, Any]) -> bytes:
    out = key(1, 0) + varint(value["count"]) if "count" in value else b""
    return out + (span(2, value["text"].encode()) if "text" in value else b"")


u64 = st.integers(0, (1 << 64) - 1)
inners = st.fixed_dictionaries({}, optional={"count": u64, "text": st.text(max_size=5)})
outers = st.fixed_dictionaries(
    {},
    optional={
        "number": u64,
        "signed": st.integers(-(1 << 63), (1 << 63) - 1),
        "flag": st.booleans(),
        "name": st.text(max_size=5),
        "blob": st.binary(max_size=5),
        "inner": inners,
        "many": st.lists(inners, min_size=1, max_size=3),
        "packed": st.lists(u64, min_size=1, max_size=5),
        "map": st.dictionaries(st.text(max_size=3), st.binary(max_size=3), min_size=1, max_size=3),
        "eight": u64,
        "four": st.integers(0, (1 << 32) - 1),
        "names": st.lists(st.text(max_size=3), min_size=1, max_size=3),
        "last": u64,
    },
)


def encode(value: dict[str, Any], *, packed: bool) -> list[bytes]:
    numbers = {rule.name: (number, rule) for number, rule in TABLE.rules.items()}
    fields: list[bytes] = []
    for name, content in value.items():
        number, rule = numbers[name]
        match rule.kind:
            case "message":
                items = content if rule.repeated else [content]
                fields += [span(number, inner(item)) for item in items]
            case "text":
                items = content if rule.repeated else [content]
                fields += [span(number, item.encode()) for item in items]
            case "bytes":
                fields.append(span(number, content))
            case "map":
                fields += [span(number, span(1, k.encode()) + span(2, v)) for k, v in content.items()]
            case "fixed64":
                fields.append(key(number, 1) + content.to_bytes(8, "little"))
            case "fixed32":
                fields.append(key(number, 5) + content.to_bytes(4, "little"))
            case _ if rule.repeated and packed:
                fields.append(span(number, b"".join(map(varint, content))))
            case _:
                items = content if rule.repeated else [content]
                fields += [key(number, 0) + varint(int(item)) for item in items]
    return fields


@given(outers, st.booleans())
def test_reads_what_was_written(value: dict[str, Any], packed: bool) -> None:
    data = b"".join(encode(value, packed=packed))
    assert parse(TABLE, data) == value
    assert parse(TABLE, memoryview(data), strict=True) == value


@given(outers, st.integers(13, 1000), st.sampled_from([0, 1, 2, 5]))
def test_unknown_fields_are_skipped_unless_parsing_is_strict(value: dict[str, Any], number: int, wire: int) -> None:
    unknown = {0: varint(7), 1: bytes(8), 2: varint(3) + b"abc", 5: bytes(4)}[wire]
    data = b"".join([key(number, wire), unknown, *encode(value, packed=True), key(number, wire), unknown])
    assert parse(TABLE, data) == value
    with pytest.raises(Unsupported, match=f"Outer has a field {number}"):
        parse(TABLE, data, strict=True)


def test_strict_reaches_inner_messages() -> None:
    data = span(6, key(9, 0) + varint(1))
    assert parse(TABLE, data) == {"inner": {}}
    with pytest.raises(Unsupported, match="Inner has a field 9"):
        parse(TABLE, data, strict=True)


def test_the_last_of_two_counts() -> None:
    assert parse(TABLE, key(1, 0) + varint(1) + key(1, 0) + varint(2)) == {"number": 2}


@each_of(
    ("data", "message"),
    [
        (b"\x08", "ends within a number"),
        (b"\x80", "ends within a number"),
        (b"\x08" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x22\x05abc", "5 bytes begins 3 bytes before"),
        (b"\x22" + varint((1 << 64) - 1), "before its end"),
        (b"\x51abc", "8 bytes begins 3"),
        (b"\x5dabc", "4 bytes begins 3"),
        (b"\x0b", "wire type 3"),
        (b"\x0c", "wire type 4"),
        (b"\x0e", "wire type 6"),
        (b"\x00\x00", "0 is not a valid field number"),
        (b"\x0a\x01a", "number has wire type 2"),
        (b"\x20\x01", "name has wire type 0"),
        (b"\x22\x01\xff", "not UTF-8"),
        (b"\x42\x01\x80", "ends within a number"),
        (b"\x4a\x02\x0a\x05", "before its end"),
    ],
)
def test_refuses(data: bytes, message: str) -> None:
    with pytest.raises(UntrustedMetadata, match=message):
        parse(TABLE, data, path="p")


def test_refuses_to_go_too_deep() -> None:
    data = b""
    for _ in range(DEPTH_MAX):
        data = span(1, data)
    parse(LOOP, data)
    with pytest.raises(UntrustedMetadata, match="nested more than"):
        parse(LOOP, span(1, data))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        parse(TABLE, data)
    except UntrustedMetadata:
        return


def test_one_of() -> None:
    assert one_of({"a": 1}, TABLE) == ("a", 1)
    for wrong in ({}, {"a": 1, "b": 2}):
        with pytest.raises(UntrustedMetadata, match="one alternative"):
            one_of(wrong, TABLE)
