"""The gauge of memory in use has the bytes of scans."""

import asyncio

import pyarrow as pa
import pyarrow.parquet as pq

import aioprefetch as ap

MIB = 1 << 20


async def test_the_memory_of_a_scan_is_in_use_and_in_no_block() -> None:
    out = pa.BufferOutputStream()
    columns = {name: pa.array([float(n) for n in range(60_000)]) for name in "abcd"}
    pq.write_table(pa.table(columns), out, row_group_size=10_000, use_dictionary=False, compression="none")
    async with ap.Operator.from_uri("memory://gauge", memory_bytes=32 * MIB) as op:
        await op.write("p", out.getvalue().to_pybytes())
        assert op.statistics["stream_read_active_memory_in_use"] == 0
        async with ap.parquet.scan(op, "p", batch_rows=5000) as scan:
            await anext(aiter(scan))
            await asyncio.sleep(0)
            counts, used = op.statistics, op.runtime().budget.used_bytes
            assert counts["stream_read_active_memory_in_use"] == used > 0
            assert counts["stream_read_bytes_in_cache"] == 0
