"""The small commands: ``stat``, ``cat`` and ``ls``."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from aioprefetch.errors import printable, redact
from aioprefetch.operator.listing import compile_glob, has_wildcard, wildcard_at
from aioprefetch.operator.operator import Operator
from aioprefetch.sync import BlockingOperator, split_url
from aioprefetch.sync import open as open_file
from aioprefetch.values import Metadata

CAT_PIECE_BYTES = 1 << 20
EXIT_NOTHING = 1


def stat(url: str, options: Mapping[str, Any]) -> int:
    """Print the metadata of one object."""
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
    """Print a line for each entry: size, time, path. The exit code is 1 without entries. The path may be a pattern."""
    root, path = _listed_place(url)
    prefix = path[: wildcard_at(path)]
    pattern = _pattern(path, recursive=recursive) if prefix != path else None
    deep = recursive or "/" in path[len(prefix) :].rstrip("/") or "**" in path
    count = 0
    with (
        BlockingOperator(Operator.from_uri(root, **options)) as operator,
        operator.list(prefix, recursive=deep) as entries,
    ):
        for entry in entries:
            if pattern is not None and not pattern.fullmatch(entry.path):
                continue
            count += 1
            size = "" if entry.size is None else str(entry.size)
            time = "" if entry.last_modified is None else entry.last_modified.isoformat(timespec="seconds")
            print(f"{size:>14}  {time:25}  {printable(entry.path)}")
    if not count:
        print(f"aioprefetch: nothing here: {printable(redact(url))}", file=sys.stderr)
    return 0 if count else EXIT_NOTHING


def _listed_place(url: str) -> tuple[str, str]:
    """The store to list, and the path and the pattern in it."""
    root, path = split_url(url, path_required=False)
    if not root.startswith("file://") or not has_wildcard(root):
        return root, path
    # Directories may be patterns too: the root is the last directory before the first pattern.
    root = root[: wildcard_at(root)].rpartition("/")[0]
    return (root if len(root) > len("file://") else "file:///"), url[len(root) + 1 :]


def _pattern(glob: str, *, recursive: bool) -> re.Pattern[str]:
    """A pattern that matches directories by their name too, and with ``recursive`` all entries in them."""
    return re.compile(f"(?:{compile_glob(glob).pattern})(?:/{'.*' if recursive else ''})?", re.DOTALL)


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
