"""The recipe of an operator as a table: the store, the layers, and the options that differ from their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from aioprefetch.display.markup import folded, frame, table
from aioprefetch.display.units import bytes_text
from aioprefetch.errors import excerpt, redact


class ShownCounts(Protocol):
    """A snapshot of statistics."""

    def values(self) -> Iterable[int]:
        """The counts."""
        ...

    def _repr_html_(self) -> str: ...


def operator_html(
    location: str, service: object, layers: Sequence[object], options: object, statistics: ShownCounts
) -> str:
    """An operator. ``layers`` are listed as requests meet them, the outermost first.

    Of service, layers and options it has what their reprs have, which hold no secret. ``statistics`` are put below if
    any of them is not zero.
    """
    rows = [
        ("store", redact(location)),
        ("service", _text(service)),
        *((f"layer {number}", _text(layer)) for number, layer in enumerate(layers, 1)),
        ("options", ", ".join(_different(options)) or "the defaults"),
    ]
    counted = folded("statistics", statistics._repr_html_()) if any(statistics.values()) else ""
    return frame("Operator", table(("", "what differs from the defaults"), rows), counted)


def _text(recipe: object) -> str:
    """The type of a part with its options, or the beginning of its own repr."""
    whole, name = repr(recipe), type(recipe).__name__
    if type(recipe).__repr__ is object.__repr__:
        return f"{name}()"
    fields = dataclasses.fields(recipe) if dataclasses.is_dataclass(recipe) else ()
    if not fields or any(f"{field.name}=" not in whole for field in fields if field.repr):
        return excerpt(whole)  # It has a repr of its own.
    return f"{name}({', '.join(_different(recipe))})"


def _different(recipe: object) -> Iterator[str]:
    """``name=value`` of each field that is not its default, and that the object's own repr shows so."""
    if not dataclasses.is_dataclass(recipe):
        return
    whole = repr(recipe)
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name, field.default)
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        shown = f"{field.name}={value!r}"
        if value is not default and value != default and shown in whole:
            if field.name.endswith("_bytes") and isinstance(value, int):
                shown = f"{field.name}={bytes_text(value)}"
            yield excerpt(shown)
