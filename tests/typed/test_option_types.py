"""The types of options say what the doors take: the same names, and the same types as recipes and signatures."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import aioprefetch as ap
from aioprefetch.lance.parts import ScanOptions as LanceOptions
from aioprefetch.lance.parts import TakeOptions
from aioprefetch.lance.scan import VersionedOptions
from aioprefetch.operator import options as doors
from aioprefetch.operator.from_uri import BUILT_IN, store_options
from aioprefetch.parquet.scan import ScanOptions as ParquetOptions
from aioprefetch.reader import growth, policy
from aioprefetch.reader import options as reader_options
from aioprefetch.services import uri_options
from aioprefetch.services.s3.options import AddressingStyle, Fallback, Signing
from aioprefetch.verbs.requests import WRITE_OPTIONS

# Names that the annotations of modules use for type checkers alone.
TYPES = {**vars(doors), **vars(uri_options), **vars(reader_options)}
TYPES |= {
    "AddressingStyle": AddressingStyle,
    "Fallback": Fallback,
    "Signing": Signing,
    "Operator": ap.Operator,
    "RangeReader": ap.RangeReader,
    "Store": object,
}


def members(hint: Any) -> frozenset[Any]:
    """The types of a union, also of one within a union; a ``Literal`` is each of its values."""
    if get_origin(hint) in (Union, UnionType):
        return frozenset().union(*map(members, get_args(hint)))
    if get_origin(hint) is Literal:
        return frozenset(("literal", value) for value in get_args(hint))
    return frozenset({hint})


@cache
def types_of(made: Any) -> dict[str, frozenset[Any]]:
    """The types of the options of a class of them, or of the keywords of a function or a recipe."""
    is_class_of_options = isinstance(made, type) and issubclass(made, dict)
    target: Any = made
    if isinstance(made, type) and not is_class_of_options:
        target = getattr(made, "__init__")  # noqa: B009 - of the class, which is as sound as of an instance
    hints = get_type_hints(target, localns=TYPES)
    return {name: members(hint) for name, hint in hints.items() if name != "return"}


def keywords_of(function: Callable[..., Any]) -> list[str]:
    """The parameters that are given by their names alone."""
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]


def test_options_of_readers_are_those_of_the_signature() -> None:
    found = types_of(doors.OpenOptions)
    assert set(found) == set(keywords_of(ap.Operator.reader))
    assert found == {name: types_of(ap.Operator.reader)[name] for name in found}


def test_options_of_operators_are_those_of_the_constructor() -> None:
    """A keyword may be ``None`` by URI."""
    found = types_of(doors.LimitOptions) | types_of(doors.BlockOptions)
    assert set(found) == set(keywords_of(ap.Operator))
    assert found == {name: types_of(ap.Operator)[name] | {NoneType} for name in found}
    assert set(types_of(doors.UriOptions)) == {name for scheme in BUILT_IN for name in store_options(scheme)}


@pytest.mark.parametrize(
    ("options", "function"),
    [
        (doors.RangesOptions, ap.Operator.view_ranges),
        (ParquetOptions, ap.parquet.scan),
        (VersionedOptions, ap.lance.scan),
    ],
)
def test_options_are_those_of_what_is_called(options: Any, function: Callable[..., Any]) -> None:
    assert list(types_of(options)) == keywords_of(function) or set(types_of(options)) == set(keywords_of(function))
    of_function = types_of(function)
    assert types_of(options) == {name: of_function[name] for name in types_of(options)}


def test_rows_that_are_taken_are_no_range() -> None:
    assert types_of(TakeOptions).keys() == types_of(LanceOptions).keys() - {"rows", "take", "ordered"}


def test_options_of_files_are_those_of_what_they_open() -> None:
    uri, reading, block = (set(types_of(kind)) for kind in (doors.UriOptions, doors.ReadingOptions, doors.BlockOptions))
    assert set(types_of(doors.ReadUrlOptions)) == uri | reading
    assert set(types_of(doors.WriteUrlOptions)) == uri | WRITE_OPTIONS
    assert set(types_of(doors.AnyUrlOptions)) == uri | reading | WRITE_OPTIONS
    assert set(types_of(doors.AnyFileOptions)) == reading | block | WRITE_OPTIONS


def test_words_with_few_values_have_those_of_the_tables() -> None:
    assert set(get_args(policy.PolicyName)) == set(policy.POLICIES)
    assert set(get_args(growth.GrowthName)) == set(growth.GROWTHS)


# The methods of fsspec's own class take what fsspec hands on.
FOREIGN = ("aioprefetch.fsspec",)


def public_callables() -> Iterator[tuple[str, Any]]:
    """Functions of the package and its rooms, and the constructors and methods of their classes."""
    rooms = [name for name in dir(ap) if isinstance(getattr(ap, name), ModuleType)]
    for room in (ap, *(getattr(ap, name) for name in rooms)):
        for name in getattr(room, "__all__", ()):
            found = getattr(room, name)
            if isinstance(found, type):
                methods = {name: one for name, one in inspect.getmembers(found) if callable(one)}
                own = {name: one for name, one in methods.items() if not name.startswith("_") or name == "__init__"}
                yield from ((f"{found.__module__}.{found.__name__}.{name}", one) for name, one in own.items())
            elif callable(found):
                yield f"{room.__name__}.{name}", found


def test_no_door_takes_options_of_any_name() -> None:
    """A misspelt one would pass every type checker."""
    untyped, seen = [], 0
    for name, function in public_callables():
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            continue
        seen += 1
        options = [one for one in parameters if one.kind is one.VAR_KEYWORD]
        is_ours = (getattr(function, "__module__", None) or "").startswith("aioprefetch") and not name.startswith(
            FOREIGN
        )
        if is_ours and any(re.search(r"\bAny\b", str(one.annotation)) for one in options):
            untyped.append(name)
    assert seen > 200
    assert untyped == []
