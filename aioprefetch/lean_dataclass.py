"""``dataclass`` for what every program loads: the standard library's, without its price at import.

``dataclasses.dataclass`` writes the source of up to eight methods for each class and compiles it when the class is
made: about half a millisecond a class, and more than half of what importing this package took. Here a method is made
when it is first looked up: ``__init__`` by this module, which sets the slots of frozen objects directly,
and ``__repr__``, ``__eq__`` and ``__hash__`` by the standard library. The fields are the standard library's too, so
``fields``, ``replace``, ``asdict`` and a dataclass that derives from such a class work.

Fields are parameters, all of them (no ``init=False``, no ``InitVar``), and there is no ``order``. Type checkers take it
for ``dataclasses.dataclass``.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import MISSING
from functools import partial
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
        """A decorator of a class with fields; the parameters are as for ``dataclasses.dataclass``."""

        def decorated(cls):
            own = dict(vars(cls))
            is_derived = _derives_from_frozen(cls, frozen=frozen)
            # The library wants a frozen class derived as one; then it compiles two methods, which we replace.
            make = dataclasses.dataclass(
                init=False, repr=False, eq=False, frozen=is_derived, slots=slots, kw_only=kw_only
            )
            if init and "__init__" not in own:
                cls.__init__ = object.__init__  # From 3.14 on the library looks it up: not a base's, to be made.
            made = make(cls)
            _check_fields(made)
            if init and "__init__" not in own:
                _check_order(made)
                made.__init__ = _Later(made, "__init__", partial(_init, made, frozen=frozen, slots=slots))
            for name, is_wanted in (("__repr__", repr), ("__eq__", eq)):
                if is_wanted and name not in own:
                    setattr(made, name, _Later(made, name, partial(_of_the_library, made, name)))
            _set_hash(made, own, eq=eq, frozen=frozen, unsafe_hash=unsafe_hash)
            if frozen:
                _freeze(made, own, slots=slots)
            return made

        return decorated


class ShownAsTable:
    """The base of a class that a notebook shows as a table of its non-empty fields."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        import importlib

        tables = importlib.import_module("aioprefetch.display.tables")  # By its name: it knows the values itself.
        facts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return str(tables.facts_html(type(self).__name__, facts))


class _Later:
    """A method of a class that is made when it is first looked up, and then takes this place."""

    def __init__(self, made: Any, name: str, make: Callable[[], Callable[..., Any]]) -> None:
        self._made, self._name, self._make = made, name, make

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method: Any = self._make()
        setattr(self._made, self._name, method)
        return method.__get__(instance, owner)


def _of_the_library(made: Any, name: str) -> Callable[..., Any]:
    """``__repr__``, ``__eq__`` or ``__hash__`` as the library writes it, fields without a default first."""
    fields = [
        (one.name, object, dataclasses.field(repr=one.repr, compare=one.compare, hash=one.hash))
        for one in sorted(dataclasses.fields(made), key=lambda one: not (one.default is MISSING is one.default_factory))
    ]
    twin = dataclasses.make_dataclass(
        made.__name__,
        fields,
        namespace={"__module__": made.__module__, "__doc__": "No signature is wanted."},
        init=False,
        repr=name == "__repr__",
        eq=name == "__eq__",
        unsafe_hash=name == "__hash__",
    )
    method: Callable[..., Any] = vars(twin)[name]
    method.__qualname__ = f"{made.__qualname__}.{name}"
    return method


# --- what is checked when a class is made -----------------------------------------------------------------------------


def _derives_from_frozen(cls: Any, *, frozen: bool) -> bool:
    bases = [base.__dataclass_params__.frozen for base in cls.__mro__[1:] if "__dataclass_params__" in vars(base)]
    if any(bases) and not frozen:
        raise TypeError("cannot inherit non-frozen dataclass from a frozen one")
    if bases and frozen and not any(bases):
        raise TypeError("cannot inherit frozen dataclass from a non-frozen one")
    return any(bases)


def _check_fields(made: Any) -> None:
    for one in made.__dataclass_fields__.values():
        if not one.init or "InitVar" in str(one.type):
            raise TypeError(f"{made.__name__}.{one.name} is not a plain field: use dataclasses.dataclass")


def _check_order(made: Any) -> None:
    optional = None
    for one in dataclasses.fields(made):
        if one.kw_only:
            continue
        if one.default is not MISSING or one.default_factory is not MISSING:
            optional = one.name
        elif optional is not None:
            raise TypeError(f"non-default argument {one.name!r} follows default argument {optional!r}")


def _set_hash(made: Any, own: dict[str, Any], *, eq: bool, frozen: bool, unsafe_hash: bool) -> None:
    """By the table of the library; Python itself sets ``None`` in a class with an ``__eq__`` of its own."""
    if "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own):
        if unsafe_hash:
            raise TypeError(f"Cannot overwrite attribute __hash__ in class {made.__name__}")
    elif unsafe_hash or (eq and frozen):
        made.__hash__ = _Later(made, "__hash__", partial(_of_the_library, made, "__hash__"))
    elif eq:
        made.__hash__ = None


# --- methods of our own -----------------------------------------------------------------------------------------------


class _NotGiven:
    def __repr__(self) -> str:
        return "<factory>"  # as the standard library shows it


_NOT_GIVEN = _NotGiven()


def _init(made: Any, *, frozen: bool, slots: bool) -> Callable[..., None]:
    """``__init__``, compiled within a function whose parameters are the names that it needs besides its own."""
    scope: dict[str, Any] = {"__not_given__": _NOT_GIVEN, "__set__": object.__setattr__}
    this = "__self__" if "self" in made.__dataclass_fields__ else "self"
    parameters: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for field in dataclasses.fields(made):
        name = value = parameter = field.name
        if field.default is not MISSING:
            scope[f"__default_{name}__"] = field.default
            parameter = f"{name}=__default_{name}__"
        elif field.default_factory is not MISSING:
            scope[f"__make_{name}__"] = field.default_factory
            parameter = f"{name}=__not_given__"
            value = f"__make_{name}__() if {name} is __not_given__ else {name}"
        (named if field.kw_only else parameters).append(parameter)
        if frozen and slots:
            scope[f"__set_{name}__"] = getattr(made, name).__set__
            lines.append(f"__set_{name}__({this}, {value})")
        else:
            lines.append(f"__set__({this}, {name!r}, {value})" if frozen else f"{this}.{name} = {value}")
    if hasattr(made, "__post_init__"):
        # No parameter, nor the object that is half made, is shown with an error: one may be a secret.
        given = ", ".join([this, *(field.name for field in dataclasses.fields(made))])
        lines.append(f"try:\n   {this}.__post_init__()\n  except BaseException:\n   del {given}\n   raise")
    signature = ", ".join([this, *parameters, *(["*", *named] if named else [])])
    body = "\n  ".join(lines or ["pass"])
    written: dict[str, Any] = {}
    source = f"def make({', '.join(scope)}):\n def __init__({signature}):\n  {body}\n return __init__"
    exec(source, vars(sys.modules[made.__module__]) if made.__module__ in sys.modules else {}, written)
    init: Callable[..., None] = written["make"](**scope)
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in dataclasses.fields(made)} | {"return": None}
    return init


def _freeze(made: Any, own: dict[str, Any], *, slots: bool) -> None:
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
