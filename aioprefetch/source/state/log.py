"""The log: one object for each record, compressed, each naming the checksum of the one before it.

So a record that was cut short, edited, or exchanged for one of another history is recognised when it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from aioprefetch.errors import InvalidArgument
from aioprefetch.source.json_fields import fields_of, text
from aioprefetch.source.record import RECORD_VERSION, Record
from aioprefetch.source.state.layout import LOG, log_name, seq_of
from aioprefetch.source.state.meta import check_version
from aioprefetch.source.state.sealed import damaged, seal, unseal
from aioprefetch.source.state.store import StateStore

T = TypeVar("T")

# No record of ours comes near this: a planner takes 100,000 files at most.
RECORD_BYTES_MAX = 1 << 30
CALLS_AT_ONCE = 16
_LEVEL = 3
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record, its checksum, and that of the record before it (``""``: there is none)."""

    record: Record
    crc32: str
    previous: str


def encode(record: Record, previous: str) -> tuple[bytes, LoggedRecord]:
    """The bytes to write for a record that follows the one with the checksum ``previous``."""
    sealed, crc = seal({"v": RECORD_VERSION, "previous": previous, "record": record.to_json()})
    data = pa.Codec("zstd", compression_level=_LEVEL).compress(sealed, asbytes=True)
    return data, LoggedRecord(record, crc, previous)


def decode(data: bytes, seq: int, *, path: str) -> LoggedRecord:
    """What ``encode`` wrote. ``UntrustedMetadata`` for anything else, ``Unsupported`` for a newer format."""
    body, crc = unseal(_decompressed(data, path), path=path)
    check_version(body, RECORD_VERSION, path=path)
    try:
        fields = fields_of(body, ("v", "previous", "record"))
        record = Record.from_json(fields["record"])
        logged = LoggedRecord(record, crc, text(fields["previous"]))
    except ValueError as error:
        raise damaged(f"a field of the record is not what it should be: {error}", path) from error
    if record.seq != seq:
        raise damaged(f"it holds record {record.seq} under the name of record {seq}", path)
    return logged


def _decompressed(data: bytes, path: str) -> bytes:
    """In pieces: pyarrow makes room for all that is asked for before it knows how much comes."""
    sealed = bytearray()
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while len(sealed) <= RECORD_BYTES_MAX and (piece := stream.read(_PIECE_BYTES)):
                sealed += piece
    except (OSError, ValueError) as error:  # What Arrow raises for damaged data; its own classes derive from these.
        raise damaged("the record cannot be decompressed", path) from error
    if len(sealed) > RECORD_BYTES_MAX:
        raise damaged(f"the record is longer than {RECORD_BYTES_MAX} bytes", path)
    return bytes(sealed)


async def log_seqs(store: StateStore, *, after: int = -1) -> list[int]:
    """The numbers of the records in the log after ``after``, in order."""
    names = await store.names(LOG, after=log_name(after) if after >= 0 else None)
    return [seq for seq in map(seq_of, names) if seq is not None]


async def read_records(store: StateStore, seqs: Sequence[int]) -> list[LoggedRecord | None]:
    """These records of the log; ``None`` for one that is not there."""

    async def read_one(seq: int) -> LoggedRecord | None:
        name = log_name(seq)
        data = await store.read(name)
        return None if data is None else decode(data, seq, path=store.path(name))

    return await together([partial(read_one, seq) for seq in seqs])


async def together(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """The results in order, so many calls at a time.

    The first failure, or a cancellation, ends the others and is raised when they are gone.
    """
    found: list[T] = []
    for start in range(0, len(calls), CALLS_AT_ONCE):
        found += await _at_once(calls[start : start + CALLS_AT_ONCE])
    return found


async def _at_once(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    tasks = [asyncio.ensure_future(call()) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def check_chain(records: Sequence[LoggedRecord], previous: str | None, *, store: StateStore) -> None:
    """``UntrustedMetadata`` unless each follows the one before it, the first one that with the checksum ``previous``.

    ``None``: nothing is known of what came before.
    """
    for logged in records:
        if previous is not None and logged.previous != previous:
            raise damaged(
                f"record {logged.record.seq} does not follow the record before it: one of the two was exchanged",
                store.path(log_name(logged.record.seq)),
            )
        previous = logged.crc32


def check_own(record: Record, writer: str) -> None:
    """``InvalidArgument`` for a record that names another writer than the state's."""
    if record.writer != writer:
        raise InvalidArgument(
            f"record {record.seq} names the writer {record.writer!r}; it must be the state's own, {writer!r}",
            operation="append_record",
        )
