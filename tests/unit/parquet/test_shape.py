"""The look through a footer before pyarrow parses it: what cannot be true is refused, and nothing is built for it."""

import numpy as np
import pyarrow as pa
import pytest

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.parquet import thrift
from aioprefetch.parquet.layout import SCHEMA_DEPTH_MAX, walk_footer
from tests.unit.parquet.parquet_files import footer_at_hand, footer_of, with_footer, written

PLAIN = written(pa.table({"a": np.arange(100), "s": [str(n) for n in range(100)]}), row_group_size=30)


def schema_of(elements: list[thrift.Struct]) -> bytes:
    """A footer of a schema and no row groups."""
    return thrift.write_struct(
        {
            1: (thrift.I32, 1),
            2: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, elements)),
            3: (thrift.I64, 0),
            4: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, [])),
        }
    )


def group(children: int) -> thrift.Struct:
    return {3: (thrift.I32, 1), 4: (thrift.BINARY, b"g"), 5: (thrift.I32, children)}


LEAF: thrift.Struct = {1: (thrift.I32, 1), 3: (thrift.I32, 0), 4: (thrift.BINARY, b"x")}


@pytest.mark.parametrize(("depth", "fits"), [(SCHEMA_DEPTH_MAX, True), (SCHEMA_DEPTH_MAX + 1, False), (50_000, False)])
def test_groups_nest_to_a_limit(depth: int, fits: bool) -> None:
    data = with_footer(PLAIN, schema_of([group(1)] * (depth + 1) + [LEAF]))
    if fits:
        assert len(footer_at_hand(data).shape.paths[0]) == depth + 1
    else:
        with pytest.raises(UntrustedMetadata, match="deep"):
            footer_at_hand(data)


def test_a_wide_schema_that_is_deep_is_refused() -> None:
    raw = schema_of([group(1)] * 100 + [group(60)] + [group(0)] * 60)
    with pytest.raises(thrift.MalformedThrift, match="widely"):
        walk_footer(raw, names_max=5000)


def test_row_groups_must_fit_into_the_bytes() -> None:
    raw = footer_of(PLAIN)
    place = raw.index(b"\x19\x4c", 10)  # The list of four row groups.
    assert len(walk_footer(raw).chunks) == 4
    with pytest.raises(thrift.MalformedThrift, match="1000 row groups of 2 columns do not fit"):
        walk_footer(raw[:place] + b"\x19\xfc\xe8\x07" + raw[place + 2 :] + bytes(1000))
    with pytest.raises(thrift.MalformedThrift, match="2097151 elements"):
        walk_footer(raw[:place] + b"\x19\xfc\xff\xff\x7f" + raw[place + 2 :])


def test_a_chunk_list_longer_than_the_schema_is_not_allocated() -> None:
    """A row group claims more chunks than there are leaves, and bytes enough for them follow."""
    raw = footer_of(PLAIN)
    place = raw.index(b"\x19\x2c", raw.index(b"\x19\x4c", 10))  # The two chunks of the first row group.
    claimed = raw[:place] + b"\x19\xfc\xff\xff\x03" + raw[place + 2 :]
    with pytest.raises(UntrustedMetadata, match="65535 column chunks, the schema 2 leaves"):
        footer_at_hand(with_footer(PLAIN, claimed + bytes(100_000)))
