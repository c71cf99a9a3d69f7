"""Operators for callers that have only a URL: equal recipes of one principal share their runtimes."""

from __future__ import annotations

from aioprefetch.operator.family_key import family_key
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.family import Member, RuntimeFamily


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
