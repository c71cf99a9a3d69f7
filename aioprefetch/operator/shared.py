"""Operators that share runtimes: of callers that have a URL or a name, and of those who hold on to another's."""

from __future__ import annotations

import weakref

from aioprefetch.errors import ConfigInvalid, InvalidType
from aioprefetch.operator.family_key import family_key
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.family import Member, RuntimeFamily


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
