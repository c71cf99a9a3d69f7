"""The parts of a table, bound to an I/O service for the two loops: in order, near matches, or in another order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aioprefetch.lance.batches import ReorderedColumn, ReorderedRoot
from aioprefetch.lance.matches import MatchingParts
from aioprefetch.lance.parts import NoIo, ScanRequest, TableScan
from aioprefetch.operator.operator import Operator
from aioprefetch.scheduler.io_service import IoService
from aioprefetch.scheduler.pages import ColumnScheduler, PreparedScan, RootDecoder, ScanPart


async def prepared_scan(table: TableScan, request: ScanRequest, operator: Operator) -> PreparedScan:
    """The parts of a table, bound to an I/O service on the current event loop."""
    service = request.service(operator, table)
    if table.order is not None and table.rows:
        return PreparedScan(table.projection.schema, [await _reordered(table, service)], service)
    row_filter, parts = table.projection.row_filter, _scan_parts(table, service)
    if row_filter is not None and 0 < len(row_filter.names) < len(table.projection.fields):
        first = request.service(operator, table)
        parts = MatchingParts(table, row_filter, first, service, request.limit).parts(operator.runtime())
    return PreparedScan(table.projection.schema, parts, service, request.is_ordered)


async def _scan_parts(table: TableScan, service: IoService) -> AsyncIterator[ScanPart]:
    schema, finish = table.projection.read_schema, table.projection.finish
    async with aclosing(table.parts()) as parts:
        async for part in parts:
            yield await part.bind(service, schema, range(len(schema)), finish)


async def _reordered(table: TableScan, service: IoService) -> ScanPart:
    """All parts as one part, with rows in the requested order."""
    assert table.order is not None
    rows, schema = len(table.order), table.projection.read_schema
    columns: list[list[ColumnScheduler[Any]]] = [[] for _ in schema.names]
    roots: list[tuple[RootDecoder[Any], int]] = []
    async with aclosing(table.parts()) as parts:
        async for unbound in parts:
            unbound.on_close()  # All parts are open at once: release their places, or the next part would wait.
            part = await replace(unbound, on_close=lambda: None).bind(service, schema, range(len(schema)))
            roots.append((part.root, part.rows))
            for index, column in enumerate(part.columns):
                columns[index].append(column)
    reordered = [ReorderedColumn(column, table.rows, rows) for column in columns]
    root = ReorderedRoot(roots, schema, table.rows, table.order)
    return ScanPart(reordered, root, NoIo(), rows, table.projection.finish)
