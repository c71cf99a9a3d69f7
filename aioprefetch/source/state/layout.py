"""The names of the objects that make up a state, below its directory. Pure.

::

    meta.json                        which state of which source this is
    log/<seq, 12 digits>.json.zst    the records, one object each, written once
    snapshot.json                    what is in the runs, and how far they go
    snapshot-<through>.json          the snapshot before that one
    seen/run-<…>.parquet             the known files, sorted by key, one key range each
    writer.json                      who writes, in stores that ignore conditions
    probe-<…>                        left by a crash while the state was being created
"""

from __future__ import annotations

import re

from aioprefetch.errors import InvalidArgument

META = "meta.json"
SNAPSHOT = "snapshot.json"
WRITER = "writer.json"
LOG = "log/"
RUNS = "seen/"
KEPT_SNAPSHOTS = "snapshot-"
PROBES = "probe-"

_LOG_NAME = re.compile(r"log/(\d{12})\.json\.zst")
_KEPT_NAME = re.compile(r"snapshot-(\d{12})\.json")
_OWN = (META, SNAPSHOT, WRITER, LOG, RUNS, KEPT_SNAPSHOTS, PROBES)


def log_name(seq: int) -> str:
    """The name of record ``seq``. Names sort as numbers do."""
    return f"{LOG}{seq:012}.json.zst"


def seq_of(name: str) -> int | None:
    """The number of the record that has a name, ``None`` for another object."""
    found = _LOG_NAME.fullmatch(name)
    return None if found is None else int(found[1])


def kept_snapshot_name(through_seq: int) -> str:
    """The name under which a snapshot is kept once another one has taken its place."""
    return f"{KEPT_SNAPSHOTS}{through_seq:012}.json"


def kept_through(name: str) -> int | None:
    """How far the kept snapshot of a name goes, ``None`` for another object."""
    found = _KEPT_NAME.fullmatch(name)
    return None if found is None else int(found[1])


def run_name(through_seq: int, number: int, token: str) -> str:
    """The name of a run that a compaction up to ``through_seq`` writes; ``token`` makes it one of its own."""
    return f"{RUNS}run-{through_seq:012}-{number:04}-{token}.parquet"


def checked_directory(directory: str) -> str:
    """A directory as the operator wants it: ``""`` or ending with ``/``. Raises ``InvalidArgument``."""
    if not isinstance(directory, str) or directory.startswith("/") or not (directory == "" or directory.endswith("/")):
        raise InvalidArgument(
            f'the directory of a state is "" or a path that ends with "/", such as "state/", not {directory!r}',
            operation="open_state",
        )
    return directory


def checked_side_name(name: str) -> str:
    """The name of a file that somebody else keeps beside the state. Raises ``InvalidArgument`` for the state's own."""
    if not isinstance(name, str) or not name or name.endswith("/") or name.startswith(("/", *_OWN)):
        raise InvalidArgument(f"{name!r} cannot be the name of a file beside the state", operation="side_file")
    return name
