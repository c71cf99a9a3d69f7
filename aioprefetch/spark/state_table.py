"""The state of a source as a table: which files it knows, at which version, by which batch, and what became of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from aioprefetch.errors import NotFound
from aioprefetch.source.fetch.cleaning import DEAD
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.values import KnownFile, TailAndSweep
from aioprefetch.spark.data_source import settings_of
from aioprefetch.spark.operators import explaining, operator_at
from aioprefetch.spark.settings import SourceSettings
from aioprefetch.sync import run

if TYPE_CHECKING:
    from aioprefetch.spark.read_options import SourceOptions

_NAMES = ("file", "version", "size", "time", "batch", "status")
_TYPES = (pa.string(), pa.string(), pa.int64(), pa.timestamp("ms", "UTC"), pa.int64(), pa.string())
SCHEMA = pa.schema([*zip(_NAMES, _TYPES, strict=True)])
_PAGE = 10_000


def source_state(spark: SparkSession, state: str, **options: Unpack[SourceOptions]) -> DataFrame:
    """A row for each file that the source with this state (its ``stateLocation``) knows, as it is now.

    ``file`` is its URL, ``version`` its version or ETag, ``size`` in bytes, ``time`` when it was modified, ``batch``
    the number of the record that took it. ``status`` is ``planned``; ``committed`` once Spark has committed the batch,
    by the checkpoint above the state, or else once the next one is planned; ``quarantined``; ``empty`` without bytes;
    ``gone`` if it is listed no more. The source may run meanwhile: nothing is written. The table is made in this
    process: some 200 bytes a file. ``options`` are of the store. ``NotFound`` without a state.
    """
    settings = settings_of(spark, state, options)
    with explaining(settings):
        return spark.createDataFrame(run(state_table(settings)))


async def state_table(settings: SourceSettings) -> pa.Table:
    """The table of ``source_state``, of the state at the location of the settings."""
    operator = operator_at(settings.location.root, settings.operator)
    state = await SourceState.open(operator, "", None, first=TailAndSweep(), writer=False)
    try:
        committed = await _committed_seq(settings, state)
        async with operator.list(DEAD) as listing:
            notes = [await operator.read(entry.path) async for entry in listing if entry.path.endswith(".jsonl")]
        lines = [json.loads(line) for note in notes for line in note.splitlines()]
        left_out = {(line["key"], line["etag"]) for line in lines}
        batches, after = [], ""
        while files := await state.index.page(after, count=_PAGE):
            after = files[-1].file.key
            rows = [_row(known, state.identity.url.rstrip("/"), committed, left_out) for known in files]
            batches.append(pa.RecordBatch.from_pylist(rows, SCHEMA))
        return pa.Table.from_batches(batches, SCHEMA)
    finally:
        await state.aclose()


def _row(known: KnownFile, root: str, committed: int, left_out: set[tuple[str, str | None]]) -> dict[str, Any]:
    file = known.file
    status = "planned" if known.seq > committed else "committed"
    if (file.key, file.etag) in left_out:
        status = "quarantined"
    elif file.size <= 0:
        status = "empty"
    elif known.gone_ms is not None:
        status = "gone"
    facts = {"file": f"{root}/{file.key}", "version": file.version or file.etag, "size": max(0, file.size)}
    return {**facts, "time": file.modified_ms, "batch": known.seq, "status": status}


async def _committed_seq(settings: SourceSettings, state: SourceState) -> int:
    """The last record that Spark has committed: by its checkpoint, or else the one before the last with work."""
    checkpoint = operator_at(settings.location.root.rpartition("/")[0], settings.operator)
    try:
        async with checkpoint.list("commits/") as listing:
            names = [entry.path.rpartition("/")[2] async for entry in listing]
        last = max(int(name) for name in names if name.isdecimal())
        lines = (await checkpoint.read(f"offsets/{last}")).splitlines()
        return max(int(json.loads(line)["seq"]) for line in lines if state.uuid.encode() in line)
    except (NotFound, ValueError):
        return max(state.committed_seq, -1, *state.work_seqs(state.committed_seq)[:-1])
