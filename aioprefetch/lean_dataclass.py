"""``dataclass`` for what every program loads: the standard library's, without its price at import.

``dataclasses.dataclass`` writes the source of up to eight methods for each class and compiles it when the class is
made: about half a millisecond a class, and more than half of what importing this package took. Here ``__init__`` is
compiled when the first object is made, and the other methods are functions that walk the fields. The fields themselves
are the standard library's, so ``fields``, ``replace``, ``asdict`` and a dataclass that derives from such a class work.

Fields are parameters, all of them (no ``init=False``, no ``InitVar``), and there is no ``order``. Type checkers take it
for ``dataclasses.dataclass``.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *,
        frozen=False,
        slots=False,
        kw_only=False,
        init=True,
        repr=True,  # noqa: A002 - the standard library's word
        eq=True,
        unsafe_hash=False,
    ):
        """A decorator of a class with fields; the parameters are those of ``dataclasses.dataclass``."""

        def decorated(cls):
            own = {name for name in cls.__dict__ if name not in ("__dict__", "__weakref__")}
            # The library wants a frozen class derived as one; then it compiles two methods, which we replace.
            is_derived = any(base.__dataclass_params__.frozen for base in cls.__mro__ if dataclasses.is_dataclass(base))
            make = dataclasses.dataclass(
                init=False, repr=False, eq=False, frozen=is_derived, slots=slots, kw_only=kw_only
            )
            made = make(cls)
            methods = {}
            if init:
                methods |= {"__init__": _first_init(made, frozen=frozen, slots=slots)}
            if repr:
                methods |= {"__repr__": _repr}
            if eq:
                methods |= _comparison(made, is_hashable=frozen or unsafe_hash)
            for name, method in methods.items():
                if name not in own:
                    setattr(made, name, method)
            if frozen:
                _freeze(made, own, slots=slots)
            return made

        return decorated


def _first_init(made: Any, *, frozen: bool, slots: bool) -> Callable[..., None]:
    """An ``__init__`` that compiles the one of the class, puts that in its own place, and calls it."""

    def compiled() -> Callable[..., None]:
        made.__init__ = init = _compiled_init(made, frozen=frozen, slots=slots)
        return init

    def first_init(self: Any, *arguments: Any, **named: Any) -> None:
        compiled()(self, *arguments, **named)

    vars(first_init)["compiled"] = compiled
    made.__signature__ = _Signature()
    return first_init


class _Signature:
    """The parameters of a class, for ``inspect.signature`` and notebooks, before its first object is made and after."""

    def __get__(self, _: object, owner: Any) -> inspect.Signature:
        init = owner.__init__
        signature = inspect.signature(vars(init)["compiled"]() if "compiled" in vars(init) else init)
        return signature.replace(parameters=tuple(signature.parameters.values())[1:])


class _NotGiven:
    def __repr__(self) -> str:
        return "<factory>"  # as the standard library shows it


_NOT_GIVEN = _NotGiven()


def _compiled_init(made: Any, *, frozen: bool, slots: bool) -> Callable[..., None]:
    scope: dict[str, Any] = {"_NOT_GIVEN": _NOT_GIVEN, "_set": object.__setattr__}
    parameters: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for field in dataclasses.fields(made):
        name = value = field.name
        parameter = name
        if field.default is not dataclasses.MISSING:
            scope[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            scope[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_NOT_GIVEN"
            value = f"_make_{name}() if {name} is _NOT_GIVEN else {name}"
        (named if field.kw_only else parameters).append(parameter)
        if frozen and slots:
            scope[f"_set_{name}"] = getattr(made, name).__set__
            lines.append(f"_set_{name}(self, {value})")
        else:
            lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    signature = ", ".join(["self", *parameters, *(["*", *named] if named else [])])
    exec(f"def __init__({signature}):\n  " + "\n  ".join(lines or ["pass"]), scope)
    compiled: Callable[..., None] = scope["__init__"]
    compiled.__qualname__, compiled.__module__ = f"{made.__qualname__}.__init__", made.__module__
    compiled.__annotations__ = {field.name: field.type for field in dataclasses.fields(made)} | {"return": None}
    return compiled


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _comparison(made: Any, *, is_hashable: bool) -> dict[str, Any]:
    compared = _getter(field.name for field in dataclasses.fields(made) if field.compare)

    def equals(self: object, other: object) -> bool:
        return compared(self) == compared(other) if type(other) is type(self) else NotImplemented

    if not is_hashable:
        return {"__eq__": equals, "__hash__": None}
    counted = _getter(
        field.name for field in dataclasses.fields(made) if (field.compare if field.hash is None else field.hash)
    )

    def hashed(self: object) -> int:
        return hash(counted(self))

    return {"__eq__": equals, "__hash__": hashed}


def _getter(names: Iterable[str]) -> Callable[[Any], Any]:
    """The values of these fields of an object."""
    found = tuple(names)
    return attrgetter(*found) if found else lambda _: ()


def _freeze(made: Any, own: set[str], *, slots: bool) -> None:
    """Refuse assignments, and let copies and pickles of slots go round that."""
    made.__dataclass_params__.frozen = True  # a frozen dataclass of a caller may derive from it
    names = {field.name for field in dataclasses.fields(made)}

    def refuse_assignment(self: Any, name: str, value: Any) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def refuse_deletion(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    made.__setattr__, made.__delattr__ = refuse_assignment, refuse_deletion
    if slots and "__getstate__" not in own:
        made.__getstate__, made.__setstate__ = _state, _set_state


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
