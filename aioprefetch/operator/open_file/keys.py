"""The keys of ``openFile()`` that are known here, and what each becomes. Pure, no I/O.

The standard keys are those of Hadoop's specification of ``FutureDataInputStreamBuilder``; the vendors' are those of
S3A and ABFS. ``docs/maps/openfile.md`` repeats the table, with the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

BUFFER_SIZE = "fs.option.openfile.buffer.size"
READ_POLICY = "fs.option.openfile.read.policy"
LENGTH = "fs.option.openfile.length"
SPLIT_START = "fs.option.openfile.split.start"
SPLIT_END = "fs.option.openfile.split.end"
FOOTER_CACHE = "fs.option.openfile.footer.cache"

PREFETCH_ENABLED = "fs.s3a.prefetch.enabled"
PREFETCH_BLOCK_SIZE = "fs.s3a.prefetch.block.size"
PREFETCH_BLOCK_COUNT = "fs.s3a.prefetch.block.count"
PREFETCH_MAX_BLOCKS_COUNT = "fs.s3a.prefetch.max.blocks.count"
INPUT_FADVISE = "fs.s3a.input.fadvise"
EXPERIMENTAL_FADVISE = "fs.s3a.experimental.input.fadvise"
READAHEAD_RANGE = "fs.s3a.readahead.range"
ASYNC_DRAIN_THRESHOLD = "fs.s3a.input.async.drain.threshold"
BUFFERED_PREAD_DISABLE = "fs.azure.buffered.pread.disable"

# Every key below it asks for S3 Select: a response to a query, not the bytes of the object.
SELECT_PREFIX = "fs.s3a.select."

Treatment = Literal["honoured", "aliased", "ignored"]


@dataclass(frozen=True, slots=True)
class Key:
    """A known key. ``option`` is the option of ``operator.reader()`` that it becomes, ``""`` where it is ignored.

    ``honoured``: it means here what it means there. ``aliased``: it becomes the nearest thing that there is.
    """

    name: str
    treatment: Treatment
    option: str


KEYS: Mapping[str, Key] = MappingProxyType(
    {
        key.name: key
        for key in (
            Key(BUFFER_SIZE, "honoured", "buffer_bytes"),
            Key(READ_POLICY, "honoured", "policy"),
            Key(LENGTH, "honoured", "size"),
            Key(SPLIT_START, "honoured", "split"),
            Key(SPLIT_END, "honoured", "split"),
            Key(FOOTER_CACHE, "honoured", "footer_cache"),
            Key(PREFETCH_ENABLED, "honoured", "prefetch_enabled"),
            Key(PREFETCH_BLOCK_SIZE, "honoured", "block_bytes"),
            Key(PREFETCH_BLOCK_COUNT, "honoured", "prefetch_blocks"),
            Key(PREFETCH_MAX_BLOCKS_COUNT, "ignored", ""),
            Key(INPUT_FADVISE, "aliased", "policy"),
            Key(EXPERIMENTAL_FADVISE, "aliased", "policy"),
            Key(READAHEAD_RANGE, "aliased", "prefetch_blocks"),
            Key(ASYNC_DRAIN_THRESHOLD, "ignored", ""),
            Key(BUFFERED_PREAD_DISABLE, "aliased", "policy"),
        )
    }
)
