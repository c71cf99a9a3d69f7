"""How far a source has come: one immutable value for each way of finding files, as small as a few keys.

``TailAndSweep`` belongs to the lister, ``Follow`` to a source that reads the state of another one's lister, ``Diff``
to stores that list in no order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from aioprefetch.errors import excerpt
from aioprefetch.source.json_fields import fields_of, integer, milliseconds, optional, text


@dataclass(frozen=True, slots=True)
class TailAndSweep:
    """Two cursors over the keys in order.

    ``frontier`` is the last key that the tail has decided on: every key above it is new. ``sweep_key`` is the last key
    that the running sweep has decided on, among those up to ``sweep_end``, which was the frontier when it began: a
    sweep ends however fast the frontier moves. ``None`` between two sweeps. ``sweeps`` counts those that have ended.
    ``high_modified_ms`` is the youngest time seen in the store's clock.
    """

    frontier: str = ""
    sweep_key: str | None = None
    sweeps: int = 0
    high_modified_ms: int | None = None
    sweep_end: str = ""


@dataclass(frozen=True, slots=True)
class Diff:
    """Full listings, one after another, each compared with all that is known. ``listings`` counts those that ended.

    ``taken`` counts changes over all listings. It tells the lister that is listing how far its page was taken, and
    nothing to any other one, which begins anew.
    """

    listings: int = 0
    high_modified_ms: int | None = None
    taken: int = 0


@dataclass(frozen=True, slots=True)
class Follow:
    """The records of another source, whose state has the id ``state``.

    First the files that it knew at record ``through``, in the order of their keys from ``backfill_key`` on
    (``None``: that is done), then its records after ``seq``.
    """

    state: str = ""
    seq: int = -1
    through: int = -1
    backfill_key: str | None = ""


Cursor = TailAndSweep | Diff | Follow
_KINDS: dict[str, type[Cursor]] = {"tail": TailAndSweep, "diff": Diff, "follow": Follow}

_optional_text = partial(optional, text)
_optional_time = partial(optional, milliseconds)
_record_number = partial(integer, least=-1)
_CHECKS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "tail": {
        "frontier": text,
        "sweep_key": _optional_text,
        "sweeps": integer,
        "high_modified_ms": _optional_time,
        "sweep_end": text,
    },
    "diff": {"listings": integer, "high_modified_ms": _optional_time, "taken": integer},
    "follow": {"state": text, "seq": _record_number, "through": _record_number, "backfill_key": _optional_text},
}


def cursor_to_json(cursor: Cursor) -> dict[str, Any]:
    """A cursor for JSON, with its kind."""
    kind = next(name for name, one in _KINDS.items() if isinstance(cursor, one))
    return {"kind": kind, **asdict(cursor)}


def cursor_from_json(value: Any) -> Cursor:
    """The cursor that ``cursor_to_json`` wrote. ``ValueError`` for anything else."""
    kind = text(value.get("kind") if isinstance(value, dict) else None)
    if kind not in _KINDS:
        raise ValueError(f"a cursor is one of {', '.join(_KINDS)}, not {excerpt(kind, 40)!r}")
    checks = _CHECKS[kind]
    fields = fields_of(value, ("kind", *checks))
    return _KINDS[kind](**{name: check(fields[name]) for name, check in checks.items()})
