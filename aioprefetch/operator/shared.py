"""Operators that share runtimes: of callers that have a URL or a name, and of those who hold on to another's.

Two may share one if their keys are equal, as those of equal recipes of one principal are. Values are compared, not
objects. A secret counts by a digest of its value as it is now, so that a variable that changes makes another key. What
cannot be compared has no key and shares nothing: a function, and an object whose class has no ``__eq__`` of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from aioprefetch.accessor.protocols import Layer, Service
from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, InvalidType
from aioprefetch.layers import CompleteLayer, ConcurrentLimitLayer, ErrorContextLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.family import Member, RuntimeFamily
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


# --- operators --------------------------------------------------------------------------------------------------------


def checked_operator(operator: object, operation: str) -> Operator:
    """The operator of an argument. ``InvalidType`` for anything else, such as a URL or a ``BlockingOperator``."""
    if isinstance(operator, Operator):
        return operator
    hint = ""
    if isinstance(operator, str):
        hint = "; Operator.from_uri makes one of a URL"
    elif isinstance(getattr(operator, "operator", None), Operator):
        hint = "; it has one: give its .operator"
    raise InvalidType(f"an Operator is needed, not {type(operator).__name__}{hint}", operation=operation)


def observed_operator(operator: object, operation: str) -> Operator:
    """The operator of an argument whose events are listened to, which may be a ``BlockingOperator``."""
    inner = getattr(operator, "operator", operator)
    return checked_operator(inner if isinstance(inner, Operator) else operator, operation)


def shared_twin(operator: Operator) -> Operator | None:
    """An operator like this one that shares its runtimes with all twins of equal operators, for the same principal.

    The principal is the one that the recipe names now: another one later has other runtimes. ``None`` for an operator
    with a function in it, or with an object that cannot be compared, which shares nothing.
    """
    key = family_key(operator.service, operator.layers, operator.options)
    if key is None:
        return None
    family = RuntimeFamily.find(("equal", key), operator.options)
    return Operator._of(*family.keep("equal", (operator.service, operator.layers)), Member(family))


def with_own_hold(operator: Operator) -> Operator:
    """The same operator with a hold of its own: closing it leaves ``operator`` as it is, not the other way round."""
    return Operator._of(operator.service, operator.layers, Member(operator._family, operator._member))


# --- names of operators -----------------------------------------------------------------------------------------------

_REFERENCE = "operator:"
_named: weakref.WeakValueDictionary[str, Operator] = weakref.WeakValueDictionary()


def reference_of(operator: Operator) -> str:
    """A name of the operator and its unpickled copies in this process, which holds no secret."""
    _, family, token = operator._member.pickled((operator.service, operator.layers), operator.info)
    reference = f"{_REFERENCE}{family}:{token}"
    _named.setdefault(reference, operator)
    return reference


def operator_of(reference: str) -> Operator:
    """The operator of a ``reference_of``. ``ConfigInvalid`` if it was of another process, or is gone."""
    operator = _named.get(reference)
    if operator is None:
        raise ConfigInvalid(
            f"{reference!r} names an operator of another process, or one that is gone; pickle an operator to hand it"
            " on, or give a URL and its options",
            operation="configure",
        )
    return operator


def is_reference(text: str) -> bool:
    """Whether a text is of the form of ``reference_of``."""
    return text.startswith(_REFERENCE)
