"""Sharing of runtimes between operators made from the same URL, and between copies of one operator.

Two may share one if their keys are equal, as for equal recipes of one principal. Values are compared, not
objects. A secret counts by a digest of its value as it is now, so that a variable that changes makes another key. What
cannot be compared has no key and shares nothing: a function, and an object whose class has no ``__eq__`` of its own.

A recipe that was made from a URL is kept, with its key, for the next caller with the same URL and options: a function
of Spark opens an object for each row. A digest stands for both and for all variables of the process; files that decide
about a recipe are looked at each time.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from aioprefetch.accessor.protocols import Layer, Service
from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, InvalidType
from aioprefetch.layers import CompleteLayer, ConcurrentLimitLayer, ErrorContextLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.family import Member, RuntimeFamily
from aioprefetch.runtime.options import RuntimeOptions

# Layers without options, and a layer that only one stack tells apart.
_LIKE_THEIR_FIELDS = (CompleteLayer, ConcurrentLimitLayer, ErrorContextLayer)


class Unshareable(Exception):
    """A value without equality: never shared."""


def family_key(service: Service, layers: Sequence[Layer], options: RuntimeOptions) -> Hashable | None:
    """The key of a recipe, with the principal and the endpoint that it names now; ``None`` if it has to be alone.

    A service whose connections depend on variables or files (proxies, authorities, kinds of endpoints) says so in
    ``surroundings``.
    """
    surroundings = getattr(service, "surroundings", ())
    try:
        return tuple(map(comparable, (service, service.info, surroundings, tuple(layers), options)))
    except Unshareable:
        return None


def same_stack(layers: Sequence[Layer], others: Sequence[Layer]) -> bool:
    """Whether two stacks of layers do the same; a layer that cannot be compared equals only itself."""
    try:
        return layers == others or comparable(tuple(layers)) == comparable(tuple(others))
    except Unshareable:
        return False


def comparable(value: Any) -> Hashable:
    """A value of plain parts, equal for values that mean the same. Raises ``Unshareable``."""
    if value is None:
        return None
    if isinstance(value, Secret):
        return Secret, value.digest_here()
    if isinstance(value, Mapping):
        return Mapping, tuple(sorted((comparable(name), comparable(item)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return type(value), tuple(map(comparable, value))
    kind: type = type(value)
    if kind not in _LIKE_THEIR_FIELDS and not any("__eq__" in vars(base) for base in kind.__mro__[:-1]):
        raise Unshareable
    if is_dataclass(value):
        return kind, tuple(comparable(getattr(value, field.name)) for field in fields(value) if field.compare)
    if kind in _LIKE_THEIR_FIELDS:
        return kind, ()
    if callable(value):
        raise Unshareable
    try:
        hash(value)
    except TypeError:
        raise Unshareable from None
    return kind, value


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


def shared_copy(operator: Operator) -> Operator | None:
    """A copy of this operator that shares its runtimes with all twins of equal operators, for the same principal.

    The principal is what the recipe names now; a later one has other runtimes. ``None`` for an operator
    with a function in it, or with an object that cannot be compared, which shares nothing.
    """
    key = family_key(operator.service, operator.layers, operator.options)
    return None if key is None else _Recipe(operator.service, operator.layers, operator.options, key).operator()


class _Recipe(NamedTuple):
    """The parts of an operator, and the key of its family."""

    service: Service
    layers: tuple[Layer, ...]
    options: RuntimeOptions
    key: Hashable

    def operator(self) -> Operator:
        family = RuntimeFamily.find(("equal", self.key), self.options)
        return Operator._of(*family.keep("equal", (self.service, self.layers)), Member(family))


# --- recipes of URLs --------------------------------------------------------------------------------------------------

RECIPES_MAX = 64
# Options whose text says all about them.
_PLAIN = (str, int, float, bool, type(None))


def operator_at(uri: str, options: Mapping[str, Any]) -> tuple[Operator, bool]:
    """``Operator.from_uri``, as a ``shared_copy`` where it can be one; and whether it is."""
    is_plain = all(type(value) in _PLAIN for value in options.values())
    digest = _digest_of(uri, options) if is_plain else ""
    kept = _kept_at(digest) if digest else []
    for states, recipe in kept[:1]:
        if recipe.service.file_states() == states:  # type: ignore[attr-defined]  # No other one is kept.
            return recipe.operator(), True
    alone = Operator.from_uri(uri, **options)
    # The states first: after a change during the next call they are old, and all is made again.
    file_states = getattr(alone.service, "file_states", None)
    states = file_states() if file_states else ()
    key = family_key(alone.service, alone.layers, alone.options)
    if key is None:
        return alone, False
    recipe = _Recipe(alone.service, alone.layers, alone.options, key)
    if digest and file_states and digest == _digest_of(uri, options):
        kept[:] = [(states, recipe)]
    return recipe.operator(), True


def _digest_of(uri: str, options: Mapping[str, Any]) -> str:
    """A digest of a URL, of options, and of the variables (secrets among them) and the user of this process."""
    variables = [(name, os.environ.get(name)) for name in os.environ]
    return Secret(repr((uri, sorted(options.items()), variables, os.getuid()))).digest_here()


@lru_cache(maxsize=RECIPES_MAX)
def _kept_at(digest: str) -> list[tuple[object, _Recipe]]:
    """The recipe under a digest, with the states of its files; empty until there is one."""
    return []


def clone_with_hold(operator: Operator) -> Operator:
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
            f"{reference!r} names an operator of another process, or a closed one; pickle an operator to hand it"
            " on, or give a URL and its options",
            operation="configure",
        )
    return operator


def is_reference(text: str) -> bool:
    """Whether a text is of the form of ``reference_of``."""
    return text.startswith(_REFERENCE)
