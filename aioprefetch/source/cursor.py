"""How far a source has come: one immutable value for each way of finding files, as small as a few keys.

``TailAndSweep`` belongs to the lister, ``Follow`` to a source that reads the state of another one's lister, ``Diff``
to stores that list in no order.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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


def cursor_to_json(cursor: Cursor) -> dict[str, Any]:
    """A cursor for JSON, with its kind."""
    kind = next(name for name, one in _KINDS.items() if isinstance(cursor, one))
    return {"kind": kind, **asdict(cursor)}


def cursor_from_json(fields: dict[str, Any]) -> Cursor:
    """The cursor that ``cursor_to_json`` wrote. ``KeyError``, ``TypeError`` for anything else."""
    rest = dict(fields)
    return _KINDS[rest.pop("kind")](**rest)
