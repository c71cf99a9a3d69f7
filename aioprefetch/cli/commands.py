"""The small commands: ``stat``, ``cat`` and ``ls``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from aioprefetch.operator import Operator
from aioprefetch.redaction import printable
from aioprefetch.sync import BlockingOperator, split_url
from aioprefetch.sync import open as open_file
from aioprefetch.values import Metadata

CAT_PIECE_BYTES = 1 << 20


def stat(url: str, options: Mapping[str, Any]) -> int:
    """Print what the store says of one object."""
    root, path = split_url(url)
    with BlockingOperator(Operator.from_uri(root, **options)) as operator:
        for name, text in _facts(operator.stat(path)).items():
            print(f"{name + ':':15} {text}")
    return 0


def cat(url: str, options: Mapping[str, Any]) -> int:
    """Write the bytes of one object to standard output."""
    with open_file(url, **options) as file:
        while piece := file.read_buffer(CAT_PIECE_BYTES):
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    return 0


def ls(url: str, options: Mapping[str, Any], *, recursive: bool) -> int:
    """Print a line for each entry: size, time, path."""
    root, path = split_url(url, path_required=False)
    with (
        BlockingOperator(Operator.from_uri(root, **options)) as operator,
        operator.list(path, recursive=recursive) as entries,
    ):
        for entry in entries:
            size = "" if entry.size is None else str(entry.size)
            time = "" if entry.last_modified is None else entry.last_modified.isoformat(timespec="seconds")
            print(f"{size:>14}  {time:25}  {printable(entry.path)}")
    return 0


def _facts(metadata: Metadata) -> dict[str, str]:
    facts = {
        "path": printable(metadata.path),
        "kind": metadata.kind,
        "size": metadata.size,
        "etag": metadata.etag,
        "version": metadata.version,
        "last modified": metadata.last_modified and metadata.last_modified.isoformat(timespec="seconds"),
        "content type": metadata.content_type,
    }
    return {name: str(fact) for name, fact in facts.items() if fact is not None}
