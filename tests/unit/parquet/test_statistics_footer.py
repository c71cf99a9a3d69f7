"""Statistics that lie about their form: pyarrow would end the process, here they are no statistics."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from aioprefetch.parquet import thrift
from aioprefetch.parquet.pruning import (
    normalized_filters,
    prune_row_groups,
)
from tests.unit.parquet.parquet_files import (
    chunk_of,
    footer_at_hand,
    tree_of,
    with_tree,
    written,
)

WITH_STATISTICS = written(
    pa.table(
        {
            "int64": range(32),
            "double": [float(n) for n in range(32)],
            "decimal": pa.array([Decimal(n) for n in range(32)], pa.decimal128(20, 2)),
            "fixed": pa.array([b"%02d" % n for n in range(32)], pa.binary(2)),
            "bool": [True] * 32,
            "timestamp": pa.array(range(32), pa.timestamp("us")),
            "string": [str(n) for n in range(32)],
            "half": pa.array([np.float16(n) for n in range(32)]),
        }
    ),
    row_group_size=8,
)
PROBES = [
    ("int64", 5),
    ("double", 5.0),
    ("decimal", Decimal(5)),
    ("fixed", b"05"),
    ("bool", True),
    ("timestamp", dt.datetime(1970, 1, 1)),
    ("string", "5"),
]


@pytest.mark.parametrize("bound", [b"", b"\1", b"\1" * 7, b"\1" * 50, b"\1" * 5000], ids=len)
def test_bounds_of_another_width_are_ignored(bound: bytes) -> None:
    """pyarrow ends the process for some of these."""
    for leaf in range(8):
        check_bound(leaf, bound)


def check_bound(leaf: int, bound: bytes) -> None:
    """Prune by every column when one of them has this bound."""
    tree = tree_of(WITH_STATISTICS)
    for number in (1, 2, 5, 6):
        chunk_of(tree, 0, leaf)[3][1][12][1][number] = (thrift.BINARY, bound)
    footer = footer_at_hand(with_tree(WITH_STATISTICS, tree))
    for name, value in PROBES:
        groups = prune_row_groups(footer, normalized_filters([(name, "==", value)], footer), range(4))
        if footer.schema.names[leaf] == name != "string":
            assert 0 in groups


@pytest.mark.parametrize(
    "statistics",
    [
        (thrift.STRUCT, {3: (thrift.I64, -1)}),
        (thrift.STRUCT, {3: (thrift.I64, 1 << 62)}),
        (thrift.STRUCT, {5: (thrift.I64, 7), 6: (thrift.LIST, thrift.ThriftList(thrift.I64, []))}),
        (thrift.I64, 7),
    ],
)
def test_statistics_that_are_none(statistics: Any) -> None:
    tree = tree_of(WITH_STATISTICS)
    chunk_of(tree, 0, 0)[3][1][12] = statistics
    footer = footer_at_hand(with_tree(WITH_STATISTICS, tree))
    assert prune_row_groups(footer, pc.field("int64") < 100, range(4)) == [0, 1, 2, 3]
    assert prune_row_groups(footer, pc.field("int64") > 100, range(4)) == [0]
