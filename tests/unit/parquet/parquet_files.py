"""Parquet files for tests: written by pyarrow into memory, and put together again with another footer."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aioprefetch.parquet import thrift
from aioprefetch.parquet.footer import Footer, footer_start, parse
from aioprefetch.runtime.events import EventBus
from aioprefetch.runtime.statistics import Counters
from aioprefetch.scheduler.pinned_file import PinnedFile
from tests.stores.gated_reader import Bench

MAGIC = b"PAR1"


def written(table: pa.Table, **options: Any) -> bytes:
    """The bytes of a file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


def footer_of(data: bytes) -> bytes:
    """The bytes of the footer alone."""
    return data[footer_start_of(data) : -8]


def footer_start_of(data: bytes) -> int:
    """Where the footer begins."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def with_footer(data: bytes, footer: bytes) -> bytes:
    """The file with another footer."""
    return data[: footer_start_of(data)] + footer + len(footer).to_bytes(4, "little") + MAGIC


def with_tree(data: bytes, tree: thrift.Struct) -> bytes:
    """The file with another footer, given as a tree."""
    return with_footer(data, thrift.write_struct(tree))


def tree_of(data: bytes) -> thrift.Struct:
    """The footer as a tree, to be changed."""
    return thrift.read_struct(footer_of(data))[0]


def chunk_of(tree: thrift.Struct, row_group: int, leaf: int) -> thrift.Struct:
    """The ColumnChunk of a footer's tree; its metadata are field 3."""
    group: thrift.Struct = tree[4][1].items[row_group]
    found: thrift.Struct = group[1][1].items[leaf]
    return found


def requests_of(bench: Bench) -> list[tuple[int, int | None]]:
    """Offset and end of each GET so far; ``(-n, None)`` is the last n bytes."""
    found: list[tuple[int, int | None]] = []
    for call in bench.calls:
        request = call.request
        if request.suffix is not None:
            found.append((-request.suffix, None))
        else:
            found.append((request.offset, None if request.size is None else request.offset + request.size))
    return found


def footer_at_hand(data: bytes) -> Footer:
    """The footer of a file that is in memory whole, without a store."""
    runtime: Any = SimpleNamespace(counters=Counters(), events=EventBus())
    accessor: Any = None
    pinned = PinnedFile(accessor, runtime, "k", size=len(data), etag="e", tail=memoryview(data))
    start = footer_start(pinned)
    return Footer(pinned, start, pinned.tail[start:-8], parse(pinned.tail[start:-8], pinned.tail[start:], "k"))


def nested_table(rows: int = 40) -> pa.Table:
    """A struct, lists, a list of structs, a map, and a name with a dot in it."""
    return pa.table(
        {
            "i": pa.array(range(rows), pa.int64()),
            "b": [{"c": n, "d": str(n)} if n % 5 else None for n in range(rows)],
            "x.y": [float(n) for n in range(rows)],
            "l": [list(range(n % 4)) if n % 7 else None for n in range(rows)],
            "m": [[{"p": n, "q": None}] * (n % 3) for n in range(rows)],
            "k": pa.array([[("a", n)] for n in range(rows)], pa.map_(pa.string(), pa.int32())),
            "n": [[[n], []] for n in range(rows)],
        }
    )
