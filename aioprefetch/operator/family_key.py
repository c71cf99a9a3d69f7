"""When two operators may share a runtime: a key that is equal for equal recipes of one principal.

Values are compared, not objects. A secret counts by a digest of its value as it is now, so that a variable that changes
makes another key. What cannot be compared has no key and shares nothing: a function, and an object whose class has no
``__eq__`` of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from aioprefetch.accessor.protocols import Layer, Service
from aioprefetch.credentials import Secret
from aioprefetch.layers import CompleteLayer, ConcurrentLimitLayer, ErrorContextLayer
from aioprefetch.runtime.options import RuntimeOptions

# Layers without options, and one of which only a single stack distinguishes its objects.
_LIKE_THEIR_FIELDS = (CompleteLayer, ConcurrentLimitLayer, ErrorContextLayer)


class NotComparable(Exception):
    """A value that has to be taken for different from every other one."""


def family_key(service: Service, layers: Sequence[Layer], options: RuntimeOptions) -> Hashable | None:
    """The key of a recipe, with the principal and the endpoint that it names now; ``None`` if it has to be alone.

    A service whose connections depend on variables or files (proxies, authorities, kinds of endpoints) says so in
    ``surroundings``.
    """
    surroundings = getattr(service, "surroundings", ())
    try:
        return tuple(map(comparable, (service, service.info, surroundings, tuple(layers), options)))
    except NotComparable:
        return None


def are_alike(layers: Sequence[Layer], others: Sequence[Layer]) -> bool:
    """Whether two stacks of layers do the same; one that cannot be compared is like itself alone."""
    try:
        return layers == others or comparable(tuple(layers)) == comparable(tuple(others))
    except NotComparable:
        return False


def comparable(value: Any) -> Hashable:
    """A value of plain parts, equal for values that mean the same. Raises ``NotComparable``."""
    if value is None:
        return None
    if isinstance(value, Secret):
        return Secret, value.digest_here()
    if isinstance(value, Mapping):
        return Mapping, tuple(sorted((comparable(name), comparable(item)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return type(value), tuple(map(comparable, value))
    kind: type = type(value)
    if "__eq__" not in _own_names(kind) and kind not in _LIKE_THEIR_FIELDS:
        raise NotComparable
    if is_dataclass(value):
        return kind, tuple(comparable(getattr(value, field.name)) for field in fields(value) if field.compare)
    if kind in _LIKE_THEIR_FIELDS:
        return kind, ()
    if callable(value):
        raise NotComparable
    try:
        hash(value)
    except TypeError:
        raise NotComparable from None
    return kind, value


def _own_names(kind: type) -> set[str]:
    """The names that a class or its bases define, those of ``object`` left out."""
    return {name for base in kind.__mro__[:-1] for name in vars(base)}
