"""The column of a file for a wanted name: the exact name, otherwise one that differs in case, as in Spark."""

from __future__ import annotations

from collections.abc import Sequence

from aioprefetch.errors import UntrustedMetadata


def match_names(names: Sequence[str], wanted: Sequence[str]) -> list[int | None]:
    """For each wanted name the place of its column among ``names``, ``None`` if there is none.

    A column that matches one wanted name exactly matches no other. ``UntrustedMetadata`` if several columns match a
    name.
    """
    if list(names) == list(wanted) and len(set(names)) == len(names):
        return list(range(len(names)))
    exact: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        exact.setdefault(name, []).append(place)
    folded: dict[str, list[int]] = {}
    taken = exact.keys() & set(wanted)
    for place, name in enumerate(names):
        if name not in taken:
            folded.setdefault(name.lower(), []).append(place)
    return [_only(name, exact.get(name) or folded.get(name.lower(), []), names) for name in wanted]


def _only(name: str, places: Sequence[int], names_of_file: Sequence[str]) -> int | None:
    if len(places) > 1:
        names = ", ".join(repr(names_of_file[place]) for place in places)
        raise UntrustedMetadata(
            f"column {name!r} may be any of {names}; rename them, or ask for one by its exact name",
            operation="conform",
            context={"column": name},
        )
    return places[0] if places else None
