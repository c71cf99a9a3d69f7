"""Lance files and datasets, made by pylance as the independent oracle and stored for an Operator."""

import random
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.accessor.protocols import Accessor, Layer
from aioprefetch.accessor.sink import Sink
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Capability, ReadReply, ReadRequest
from tests.stores.verb_layer import VerbLayer

lance_file: Any = pytest.importorskip("lance.file")

VERSIONS = ("2.0", "2.1", "2.2")
PATH = "t.lance"


def write_file(
    table: pa.Table,
    version: str = "2.0",
    data_cache_bytes: int | None = None,
    path: str | Path | None = None,
    *,
    batch_rows: int | None = None,
    max_page_bytes: int | None = None,
) -> bytes:
    """The bytes of a Lance file with ``table``, also written to ``path`` if given.

    A small ``data_cache_bytes`` (it is split over the top-level columns) makes many pages, given small batches.
    """
    options: dict[str, Any] = {"data_cache_bytes": data_cache_bytes, "max_page_bytes": max_page_bytes}
    with tempfile.TemporaryDirectory() as directory:
        target = Path(path) if path is not None else Path(directory) / PATH
        with lance_file.LanceFileWriter(
            str(target), table.schema, version=version, **{k: v for k, v in options.items() if v is not None}
        ) as writer:
            for batch in table.to_batches(max_chunksize=batch_rows):
                writer.write_batch(unsliced(batch))
        return target.read_bytes()


def unsliced(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of the rows in arrays at offset 0: the 2.0 writer ignores the offsets of nested columns."""
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) if column.offset else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def damaged(data: bytes, chance: random.Random, start: int = 0, changes: int = 3) -> bytes:
    """A copy of the bytes with up to ``changes`` of them, from ``start`` on, replaced by boundary values."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, changes)):
        changed[chance.randrange(start, len(data))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
    return bytes(changed)


def peer_reader(data: bytes, directory: Path) -> Any:
    """Pylance's own reader of a file's bytes."""
    path = directory / PATH
    path.write_bytes(data)
    return lance_file.LanceFileReader(str(path))


@dataclass(frozen=True)
class LoggingLayer(VerbLayer):
    """Records every read that reaches the store: path, first byte, byte after the last (for a suffix: ``-size``)."""

    log: list[tuple[str, int, int | None]] = field(default_factory=list)

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        if request.suffix is not None:
            self.log.append((request.path, -request.suffix, None))
        else:
            end = None if request.size is None else request.offset + request.size
            self.log.append((request.path, request.offset, end))
        return await inner.read(request, sink)


@asynccontextmanager
async def stored(
    data: bytes | Mapping[str, bytes],
    path: str = PATH,
    *,
    log: list[tuple[str, int, int | None]] | None = None,
    **options: Any,
) -> AsyncIterator[Operator]:
    """An Operator over a store in memory that holds ``data`` at ``path`` (or several objects by their paths).

    Every read is appended to ``log``. ``options`` are those of the Operator.
    """
    objects: Mapping[str, bytes] = data if isinstance(data, Mapping) else {path: data}
    async with Operator.from_uri("memory://", **options) as operator:
        for key, content in objects.items():
            await operator.write(key, content)
        yield operator if log is None else operator.layer(LoggingLayer(log))


class _BlindLayer(Layer):
    """A store that cannot list, such as http."""

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return inner

    def adapt(self, capability: Capability) -> Capability:
        return replace(capability, list=False)


def without_listing(operator: Operator) -> Operator:
    """The operator, as if its store could not list."""
    return operator.layer(_BlindLayer())


def dataset_objects(directory: Path, name: str) -> dict[str, bytes]:
    """Every object of the dataset in ``directory``, by its path in a store below ``name``."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {f"{name}/{path.relative_to(directory).as_posix()}": path.read_bytes() for path in files}
