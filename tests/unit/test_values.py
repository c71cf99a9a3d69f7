"""The values made for every request are filled by a faster way than dataclasses have, and are as frozen as any."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from aioprefetch.values import ReadHead, ReadRequest

MADE: dict[type, dict[str, Any]] = {
    ReadRequest: {"path": "k", "offset": 3, "lane": "prefetch"},
    ReadHead: {"start": 3, "size": 5, "total": None},
}
KINDS = pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)


@KINDS
def test_each_field_has_what_it_was_given_or_its_default(kind: type) -> None:
    made = kind(**MADE[kind])
    assert type(made) is kind
    for one in fields(kind):
        assert getattr(made, one.name) == MADE[kind].get(one.name, one.default)
    numbered = {one.name: number for number, one in enumerate(fields(kind))}
    assert dataclasses.astuple(kind(**numbered)) == tuple(numbered.values())


@KINDS
def test_none_can_be_changed(kind: type) -> None:
    made = kind(**MADE[kind])
    for one in fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, one.name, None)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(made, one.name)
    assert not hasattr(made, "__dict__")


@KINDS
def test_they_copy_pickle_compare_and_hash(kind: type) -> None:
    made = kind(**MADE[kind])
    others = [copy.copy(made), copy.deepcopy(made), replace(made), pickle.loads(pickle.dumps(made))]
    assert others == [made] * 4
    assert {type(other) for other in others} == {kind}
    assert {hash(other) for other in others} == {hash(made)}


@KINDS
def test_wrong_arguments_are_refused(kind: type) -> None:
    with pytest.raises(TypeError, match="missing"):
        kind()
    with pytest.raises(TypeError, match="positional"):
        kind("k")
    with pytest.raises(TypeError, match="unexpected"):
        kind(**MADE[kind], other=1)


@KINDS
def test_the_signature_is_that_of_the_fields(kind: type) -> None:
    assert list(inspect.signature(kind).parameters) == [one.name for one in fields(kind)]


def test_a_subclass_is_filled_too() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class More(ReadRequest):
        more: int

    made = More(path="k", more=3)
    assert (made.path, made.more, made.offset, type(made)) == ("k", 3, 0, More)
