"""``lean_dataclass.dataclass`` beside the standard library's: the same classes, made without compiling."""

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, replace
from functools import partial
from typing import Any, get_type_hints

import pytest

import aioprefetch as ap
from aioprefetch import lean_dataclass
from aioprefetch.services.s3 import S3

# A type checker knows one ``dataclass``; here there are two.
lean: Any = vars(lean_dataclass)["dataclass"]
SHAPES = [
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True},
    {"frozen": True},
    {"slots": True},
    {"slots": True, "kw_only": True, "unsafe_hash": True},
    {"slots": True, "eq": False},
    {"frozen": True, "slots": True, "repr": False},
]


def classes(decorator: Callable[..., Any], shape: dict[str, bool]) -> tuple[type, type]:
    """A class and one that derives from it, made by a decorator."""

    class Base:
        """A base."""

        name: str
        _: dataclasses.KW_ONLY
        size: int | None = None
        labels: list[str] = field(default_factory=list, hash=False)

    base: Any = decorator(**shape)(Base)

    class Derived(base):  # type: ignore[misc]
        """Its fields come after those of the base."""

        secret: str = field(default="s", repr=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "size", (self.size or 0) + 1)

    Derived.__annotations__ = {"secret": "str"}
    return base, decorator(**shape)(Derived)


def behaviour(kind: type, shape: dict[str, bool]) -> dict[str, Any]:
    """What can be seen of a class from outside."""
    value: Any = kind(name="a", size=3)
    same: Any = kind(name="a", size=3)
    seen: dict[str, Any] = {
        "values": [getattr(value, one.name) for one in fields(value)],
        "repr": repr(value).replace(hex(id(value)), ""),
        "equal": [value == same, value == kind(name="b"), value == ("a", 3, []), value != same],
        "replaced": [getattr(replace(value, name="z"), one.name) for one in fields(value)],
        "dict": dataclasses.asdict(value),
        "pattern": kind.__match_args__,  # type: ignore[attr-defined]
        "parameters": list(inspect.signature(kind).parameters),
        "copied": repr(copy.deepcopy(value).labels),
        "own lists": value.labels is same.labels,
        "dictionary": hasattr(value, "__dict__"),
    }
    acts: dict[str, Callable[[], object]] = {
        "hash": lambda: isinstance(hash(value), int) and (hash(value) == hash(same)),
        "assign": lambda: setattr(value, "name", "c"),
        "delete": lambda: delattr(value, "size"),
        "unknown": lambda: kind(name="a", colour="red"),
        "missing": partial(kind),
    }
    for name, act in acts.items():
        try:
            seen[name] = act()
        except (AttributeError, TypeError) as error:
            seen[name] = type(error)
    return seen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("derived", [False, True], ids=["base", "derived"])
def test_a_class_behaves_as_one_of_the_standard_library(shape: dict[str, bool], derived: bool) -> None:
    ours, theirs = classes(lean, shape)[derived], classes(dataclasses.dataclass, shape)[derived]
    assert behaviour(ours, shape) == behaviour(theirs, shape)


def test_a_frozen_value_goes_through_a_pickle() -> None:
    value = ap.Metadata(path="k", size=3)
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.copy(value) == value


def test_a_frozen_class_refuses_to_be_changed() -> None:
    value: Any = ap.Metadata(path="k")
    with pytest.raises(FrozenInstanceError, match="path"):
        value.path = "other"
    with pytest.raises(FrozenInstanceError, match="path"):
        del value.path


def test_a_dataclass_of_a_user_derives_from_ours() -> None:
    """A layer of one's own, for example."""

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Patient(ap.layers.RetryLayer):
        """It retries longer."""

        patience: int = 3

    value = Patient(attempts_max=2)
    assert (value.attempts_max, value.patience) == (2, 3)
    assert value == replace(value) != Patient()


def test_a_service_compares_and_shows_its_fields() -> None:
    first, second = S3(bucket="bucket", region="r"), S3(bucket="bucket", region="r")
    assert first == second != S3(bucket="other", region="r")
    assert hash(first) == hash(second)
    assert "bucket='bucket'" in repr(first)


def test_many_threads_make_the_first_object_at_once() -> None:
    """Each finds ``__init__`` compiled, or compiles it."""
    program = """
import threading, sys
sys.setswitchinterval(1e-6)
from aioprefetch.values import Metadata
gate, made = threading.Barrier(16), []
def make(number):
    gate.wait()
    made.append(Metadata(path=str(number)))
threads = [threading.Thread(target=make, args=(number,)) for number in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert sorted(one.path for one in made) == sorted(map(str, range(16))), made
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_importing_the_package_compiles_no_method() -> None:
    """``dataclasses`` calls ``exec`` for each method that it writes; so do named tuples, once, and ``enum`` never."""
    program = """
import sys, asyncio, dataclasses
compiled = []
nothing = b"def __create_fn__():\\n\\n return ()"  # since 3.13, for a class without methods
def note(event, given):
    if event == "compile" and given[1] == "<string>" and given[0] != nothing:
        compiled.append(given[0])
sys.addaudithook(note)
import aioprefetch
assert len(compiled) <= 8, compiled
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_fields_stay_named_after_the_first_object() -> None:
    make: Any = ap.ReadRequest
    for _ in range(2):
        with pytest.raises(TypeError):
            make("k")
        assert make(path="k", offset=3).offset == 3


def test_the_parameters_show_before_the_first_object() -> None:
    """A notebook asks for the signature of a class that was never used."""
    ours, theirs = (classes(decorator, SHAPES[0])[1] for decorator in (lean, dataclasses.dataclass))
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))


def test_values_that_do_not_equal_themselves_compare_as_in_the_library() -> None:
    """Not-a-number, and arrays whose ``==`` gives an array: by identity up to Python 3.12, by ``==`` from 3.13 on."""

    class Elementwise:
        def __eq__(self, other: object) -> Any:
            return [False]

        __hash__ = None  # type: ignore[assignment]

    made: list[Any] = [
        decorator(frozen=True)(type("One", (), {"__annotations__": {"value": object}}))
        for decorator in (lean, dataclasses.dataclass)
    ]
    for odd in (float("nan"), Elementwise()):
        ours, theirs = (one(odd) == one(odd) for one in made)
        assert ours == theirs
        assert ours == (True if sys.version_info < (3, 13) else odd == odd)


def test_a_class_with_equality_of_its_own_stays_hashable() -> None:
    class One:
        value: int

        def __eq__(self, other: object) -> bool:
            return True

    made = lean(frozen=True)(One)
    assert hash(made(1)) == hash(made(1))


def mutable_of_frozen(decorator: Any) -> None:
    base = decorator(frozen=True)(type("Base", (), {"__annotations__": {"x": int}}))
    decorator(slots=True)(type("Derived", (base,), {}))


def frozen_of_mutable(decorator: Any) -> None:
    base = decorator(slots=True)(type("Base", (), {"__annotations__": {"x": int}}))
    decorator(frozen=True)(type("Derived", (base,), {}))


def required_after_optional(decorator: Any) -> None:
    decorator(frozen=True)(type("One", (), {"__annotations__": {"x": int, "y": int}, "x": 1}))


def hash_of_its_own(decorator: Any) -> None:
    decorator(unsafe_hash=True)(type("One", (), {"__annotations__": {"x": int}, "__hash__": lambda _: 1}))


@pytest.mark.parametrize("define", [mutable_of_frozen, frozen_of_mutable, required_after_optional, hash_of_its_own])
def test_what_the_standard_library_refuses_is_refused_when_the_class_is_made(define: Callable[[Any], None]) -> None:
    with pytest.raises(TypeError) as theirs:
        define(dataclasses.dataclass)
    with pytest.raises(TypeError) as ours:
        define(lean)
    assert str(ours.value).startswith(str(theirs.value))  # Python 3.13 says in one of them what we always say.


@pytest.mark.parametrize("contents", [{"x": field(init=False, default=1)}, {"__annotations__": {"x": "InitVar[int]"}}])
def test_fields_that_are_no_parameters_are_refused_with_the_name_of_what_takes_them(contents: dict[str, Any]) -> None:
    kind = type("One", (), {"__annotations__": {"x": int}, "__module__": "dataclasses"} | contents)
    with pytest.raises(TypeError, match=r"One\.x is not a plain field: use dataclasses\.dataclass"):
        lean(frozen=True)(kind)


def test_the_types_of_the_parameters_show_before_the_first_object() -> None:
    made = lean(frozen=True)(
        type("One", (), {"__annotations__": {"x": "Callable[[int], Any]"}, "__module__": __name__})
    )
    assert get_type_hints(made.__init__) == {"x": Callable[[int], Any], "return": type(None)}


@pytest.mark.parametrize("frozen", [False, True])
def test_a_field_may_have_any_name(frozen: bool) -> None:
    names = ["self", "_set", "made", "scope", "value"]
    kind = lean(frozen=frozen)(type("One", (), {"__annotations__": dict.fromkeys(names, int)}))
    assert [getattr(kind(1, 2, 3, 4, value=5), name) for name in names] == [1, 2, 3, 4, 5]
