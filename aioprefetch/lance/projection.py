"""Which fields a scan wants, by name, down into structs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from aioprefetch.errors import InvalidArgument
from aioprefetch.lance.schema import Field
from aioprefetch.scan import column_names


def project(fields: Sequence[Field], columns: object | None, *, path: str = "") -> tuple[Field, ...]:
    """The fields that ``columns`` names, in its order; all of them for ``None``.

    ``"a.b"`` is field ``b`` of struct ``a``: the result has ``a`` with the children that were named, in the order of
    the schema. A name that comes twice counts once. ``InvalidArgument`` for a name that is not there, with those that
    are; ``InvalidType`` for what is no list of names.
    """
    if columns is None:
        return tuple(fields)
    wanted: dict[str, set[tuple[str, ...]]] = {}
    by_name = {one.name: one for one in fields}
    for name in column_names(columns, path=path):
        top, inner = (name, ()) if name in by_name else _split(name)
        if top not in by_name:
            raise _unknown(name, by_name, path)
        wanted.setdefault(top, set()).add(inner)
    return tuple(_prune(by_name[top], inner, top, path) for top, inner in wanted.items())


def _split(name: str) -> tuple[str, tuple[str, ...]]:
    top, *inner = name.split(".")
    return top, tuple(inner)


def _prune(one: Field, wanted: set[tuple[str, ...]], name: str, path: str) -> Field:
    """A field with those of its descendants that are wanted; the empty path means all of it."""
    if () in wanted:
        return one
    children = {child.name: child for child in one.children} if one.is_struct else {}
    below: dict[str, set[tuple[str, ...]]] = {}
    for inner in wanted:
        if inner[0] not in children:
            raise _unknown(".".join((name, *inner)), [f"{name}.{child}" for child in children], path)
        below.setdefault(inner[0], set()).add(inner[1:])
    kept = [
        _prune(child, below[child.name], f"{name}.{child.name}", path) for child in one.children if child.name in below
    ]
    return one.with_children(kept)


def _unknown(name: str, known: Iterable[str], path: str) -> InvalidArgument:
    names = list(known)
    shown = ", ".join(names[:50]) + (", ..." if len(names) > 50 else "") if names else "none"
    return InvalidArgument(f"there is no column {name!r}; there are: {shown}", operation="scan", path=path)


def needed_columns(fields: Sequence[Field], version: tuple[int, int]) -> Iterator[int]:
    """The indices of the file's columns that hold those fields, of a projection only what was left in it."""
    for one in fields:
        if one.is_one_column(version):
            yield from one.columns
            continue
        if version == (2, 0):
            yield one.columns.start
        yield from needed_columns(one.children, version)
