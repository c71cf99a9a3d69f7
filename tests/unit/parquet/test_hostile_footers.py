"""Damaged footers: each is refused by name or planned within the file, and none ends the process.

The planning runs in a process of its own, because pyarrow ends its process for some unchecked metadata.
"""

import asyncio
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import InvalidArgument, Unsupported, UntrustedMetadata
from aioprefetch.parquet import thrift
from aioprefetch.parquet.footer import Footer
from aioprefetch.parquet.plan import plan_scan, scan_arguments
from tests.profile import chosen
from tests.unit.parquet.parquet_files import (
    footer_at_hand,
    footer_of,
    footer_start_of,
    nested_table,
    with_footer,
    written,
)

ROOT = Path(__file__).parents[3]
FILES = [
    written(nested_table(), row_group_size=13, write_page_index=True),
    written(
        pa.table({"i": range(300), "f": np.arange(300.0), "s": [str(n) for n in range(300)]}),
        row_group_size=100,
        write_page_index=True,
        data_page_size=256,
        write_batch_size=32,
    ),
]
FOOTERS = chosen(quick=300, full=1000)
# The maximum memory of a footer of some KiB, whatever it claims.
MEMORY_BYTES_MAX = 8 << 20

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x0F, 0xF0, 0x1C, 0x19, 0x15, 0x16)
BIG = (-1, 0, 1, 3, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63))


def damaged(random_: random.Random) -> bytes:
    """A file with some bytes of the footer changed, dropped or added, or numbers of its tree replaced."""
    data = random_.choice(FILES)
    raw = bytearray(footer_of(data))
    if random_.random() < 0.5:
        tree = thrift.read_struct(bytes(raw))[0]
        for _ in range(random_.randint(1, 3)):
            _spoil(tree, random_)
        return with_footer(data, thrift.write_struct(tree))
    for _ in range(random_.randint(1, 6)):
        place = random_.randrange(len(raw))
        how = random_.random()
        if how < 0.1:
            del raw[place : place + random_.randint(1, 40)]
        elif how < 0.2:
            raw[place:place] = random_.randbytes(random_.randint(1, 20))
        else:
            raw[place] = random_.choice((*INTERESTING, random_.randrange(256)))
    return with_footer(data, bytes(raw))


def _spoil(fields: thrift.Struct, random_: random.Random) -> None:
    """Go down to some field and change it."""
    number = random_.choice(list(fields))
    kind, value = fields[number]
    if kind == thrift.STRUCT and value and random_.random() < 0.95:
        _spoil(value, random_)
    elif kind == thrift.LIST and value.items and random_.random() < 0.9:
        place = random_.randrange(len(value.items))
        if value.element == thrift.STRUCT:
            if value.items[place]:
                _spoil(value.items[place], random_)
        elif value.element in (thrift.I32, thrift.I64):
            value.items[place] = random_.choice(BIG)
        else:
            value.items[place] = random_.randbytes(random_.randint(0, 9))
    elif kind == thrift.LIST and value.items:
        value.items.pop() if random_.random() < 0.5 else value.items.append(value.items[0])
    elif kind in (thrift.I32, thrift.I64):
        fields[number] = (kind, random_.choice((*BIG, value + 1, value - 1)))
    elif kind == thrift.BINARY:
        fields[number] = (kind, random_.randbytes(random_.randint(0, 20)))
    else:
        del fields[number]


def use(footer: Footer) -> None:
    """Plan with everything that looks at the metadata, and hold the plan against the file."""
    options: list[dict[str, Any]] = [
        {},
        {"rows": (5, 17)},
        {"filters": [("i", ">", 11), ("s", "<", "2")] if "s" in footer.schema.names else [("i", ">", 11)]},
        {"filters": (pc.field("i") < 20) | pc.field("i").is_null()},
    ]
    for one in options:
        try:
            plan = asyncio.run(plan_scan(footer, scan_arguments(footer.path, **one)))
        except (Unsupported, UntrustedMetadata):
            continue
        except InvalidArgument:
            # A column may have another name or type now; without the filter nothing was said of names.
            if "filters" in one:
                continue
            raise
        for start, end in plan.requests:
            assert 4 <= start < end <= footer.start
        for planned in plan.chunks:
            assert all(planned.chunk.start <= start < end <= planned.chunk.end for start, end in planned.ranges)


def run(first: int, last: int) -> None:
    """Damage, read and plan; what is wrong is an error that ends this process."""
    ends: Counter[str] = Counter()
    for seed in range(first, last):
        data = damaged(random.Random(seed))
        try:
            footer = footer_at_hand(data)
        except (UntrustedMetadata, Unsupported) as error:
            ends[type(error).__name__] += 1
            continue
        assert footer.start == footer_start_of(data)
        use(footer)
        ends["read"] += 1
    assert ends["read"] > 0.2 * (last - first), ends
    assert ends["UntrustedMetadata"] > 0.2 * (last - first), ends


def test_damaged_footers() -> None:
    code = f"from tests.unit.parquet.test_hostile_footers import run; run(0, {FOOTERS})"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert found.returncode == 0, found.stderr[-2000:]


def test_damaged_footers_cost_no_memory_by_their_claims() -> None:
    """Python's own allocations; pyarrow's lists are bounded by what it is allowed."""
    for seed in range(60):
        data = damaged(random.Random(10_000 + seed))
        tracemalloc.start()
        try:
            footer_at_hand(data)
        except (UntrustedMetadata, Unsupported):
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MEMORY_BYTES_MAX


def test_a_million_row_groups_are_read_or_refused() -> None:
    """Each of 28 bytes and without columns: 7 MB of row groups, which is below the cap."""
    group = thrift.write_struct(
        {1: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, [])), 2: (thrift.I64, 0), 3: (thrift.I64, 0)}
    )
    count = 1_000_000
    lists = b"\x19\xfc" + bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14]) + group * count
    tree, data = thrift.read_struct(footer_of(FILES[1]))[0], FILES[1]
    head = thrift.write_struct({number: field for number, field in tree.items() if number < 4})[:-1]
    try:
        footer = footer_at_hand(with_footer(data, head + lists + b"\0"))
    except UntrustedMetadata:
        return
    use(footer)
