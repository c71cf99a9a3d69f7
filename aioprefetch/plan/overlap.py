"""How two places lie to one another: a run must not read what it writes.

A copy of ``a/b/`` to ``a/`` writes ``a/b/x`` where it finds ``a/b/b/x``: the one object is a target, and a source if it
is there already. Then what is copied depends on which of the two is read first, and a move loses one of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Literal

from aioprefetch.values import Identity

Position = Literal["same", "inside", "around", "apart"]


def position(target: Identity, source: Identity) -> Position:
    """How the target lies to the source, both places that hold objects, or both objects."""
    if target.store != source.store:
        return "apart"
    if target.name == source.name:
        return "same"
    if source.name in target.within:
        return "inside"
    return "around" if target.name in source.within else "apart"


def path_between(outer: Identity, inner: Identity) -> str:
    """The path of a place from one around it, with ``/`` at its end: ``"b/"`` from ``a/`` to ``a/b/``."""
    depth = len(inner.within) - inner.within.index(outer.name)
    return "/".join(inner.path.removesuffix("/").split("/")[-depth:]) + "/"


def conflict(sources: Sequence[Identity], targets: Sequence[Identity]) -> tuple[int, int, bool] | None:
    """Two pairs of a run, by number: the target of the first one is the source of the second one, or its target.

    The last value is ``True`` for a source. ``None`` if no target is read, or written twice.
    """
    read = {identity: number for number, identity in enumerate(sources)}
    written: dict[Identity, int] = {}
    for number, target in enumerate(targets):
        if read.get(target, number) != number:
            return number, read[target], True
        if written.setdefault(target, number) != number:
            return number, written[target], False
    return None


def folded(path: str) -> str:
    """A path in the form in which a store that folds names compares it: without case, its letters composed."""
    return unicodedata.normalize("NFC", path).casefold()


# Pairs of names that are one where names are folded: by case, or by the form of their letters.
FOLDED_PAIRS = (("aioprefetch", "AIOPREFETCH"), ("aioprefetch-\u00e9", "aioprefetch-e\u0301"))
