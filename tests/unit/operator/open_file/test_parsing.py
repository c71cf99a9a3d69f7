"""The parser, on values that hypothesis finds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch import Operator
from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator import open_file as k
from aioprefetch.operator.open_file import Settings, known_object
from aioprefetch.reader.options import ReaderOptions
from aioprefetch.reader.policy import POLICIES
from aioprefetch.services import Memory
from tests.unit.operator.open_file.clauses import awaited

LONG_MAX = (1 << 63) - 1
SUFFIXES = {"": 0, "k": 10, "M": 20, "g": 30, "T": 40, "p": 50, "E": 60}

OPERATOR = Operator(Memory())
DEFAULT = OPERATOR.reader("k").options

spaces = st.text(" \t\n", max_size=3)
numbers = st.one_of(st.integers(), st.integers(-LONG_MAX - 1, LONG_MAX), st.integers(-20, 20))
anything = st.one_of(
    *(st.text(max_size=20), numbers, st.floats(), st.booleans(), st.none(), st.binary(max_size=4)),
    *(st.lists(st.text(max_size=5), max_size=3), st.sampled_from(["8M", "0K", "1.0E3", "true", "parquet, random"])),
)
limited = st.sampled_from([k.PREFETCH_BLOCK_SIZE, k.PREFETCH_BLOCK_COUNT])
hints = st.sampled_from([key for key in k.KEYS if key not in (k.PREFETCH_BLOCK_SIZE, k.PREFETCH_BLOCK_COUNT)])


def settings_of(value: object) -> Settings:
    """One key "x" with this value."""
    settings = Settings()
    settings.put("x", value, mandatory=True)
    return settings


def opened(calls: list[tuple[str, object, bool]]) -> ReaderOptions:
    """The options that these calls lead to."""
    builder = OPERATOR.open_file("k")
    for key, value, must in calls:
        assert (builder.must if must else builder.opt)(key, value) is builder
    return awaited(builder.build()).options


@given(numbers, spaces, spaces)
def test_integers(number: int, before: str, after: str) -> None:
    """A long as it is, with spaces around or without; more than a long holds is unset."""
    expected = number if -LONG_MAX - 1 <= number <= LONG_MAX else None
    for value in (number, f"{before}{number}{after}", f"{before}{number:+}"):
        assert settings_of(value).integer("x") == expected
        assert settings_of(value).size("x") == expected


@given(numbers, st.sampled_from(sorted(SUFFIXES)), st.booleans(), spaces)
def test_sizes(number: int, suffix: str, upper: bool, space: str) -> None:
    """Powers of 1024; an integer takes no suffix."""
    value = number << SUFFIXES[suffix]
    text = f"{number}{suffix.upper() if upper else suffix.lower()}{space}"
    expected = value if -LONG_MAX - 1 <= value <= LONG_MAX and -LONG_MAX - 1 <= number <= LONG_MAX else None
    assert settings_of(text).size("x") == expected
    if suffix:
        assert settings_of(text).integer("x") is None


@given(anything)
def test_whatever_a_value_is_parsing_it_raises_nothing(value: object) -> None:
    """And what it gives is of the kind that was asked for."""
    settings = settings_of(value)
    assert settings.integer("x") is None or isinstance(settings.integer("x"), int)
    assert settings.size("x") is None or isinstance(settings.size("x"), int)
    assert settings.flag("x") in (None, True, False)
    assert all(name and name == name.strip().lower() for name in settings.names("x"))


@given(hints, anything, st.booleans())
def test_no_hint_fails_an_open(key: str, value: object, must: bool) -> None:
    """Whatever it is, it becomes its own option or nothing."""
    changed = {
        name for name in DEFAULT.__slots__ if getattr(opened([(key, value, must)]), name) != getattr(DEFAULT, name)
    }
    option = {"buffer_bytes": "chunk_bytes", "footer_cache": "footer_bytes"}.get(k.KEYS[key].option, k.KEYS[key].option)
    allowed = {option} | ({"policy"} if key in (k.FOOTER_CACHE, k.PREFETCH_ENABLED) else set())
    assert changed <= allowed


@given(limited, st.one_of(numbers, anything))
def test_limits_are_at_least_one(key: str, value: object) -> None:
    """Else an error that names the key."""
    settings, is_size = settings_of(value), key == k.PREFETCH_BLOCK_SIZE
    number = settings.size("x") if is_size else settings.integer("x")
    is_too_large = is_size and number is not None and number > OPERATOR.options.memory_bytes
    for must in (False, True):
        if number is not None and (number < 1 or (must and is_too_large)):
            with pytest.raises(ConfigInvalid, match=key):
                opened([(key, value, must)])
    if number is not None and number < 1:
        return
    name = "block_bytes" if is_size else "prefetch_blocks"
    expected = getattr(DEFAULT, name) if number is None else number
    if is_too_large:
        expected = OPERATOR.options.memory_bytes
    assert getattr(opened([(key, value, False)]), name) == expected


@given(st.lists(st.tuples(hints, anything, st.booleans()), max_size=8))
def test_the_last_call_for_a_key_decides(calls: list[tuple[str, object, bool]]) -> None:
    last = {key: (key, value, must) for key, value, must in calls}
    assert opened(calls) == opened(list(last.values()))


@given(st.lists(st.one_of(st.sampled_from(sorted(POLICIES)), st.text("abc-", max_size=4)), max_size=6), st.randoms())
def test_the_first_known_policy_of_a_list(names: list[str], dice: random.Random) -> None:
    """In any case, between any spaces, as text or as a list."""
    known = [name for name in names if name in POLICIES]
    written = [f"{dice.choice(['', ' '])}{dice.choice([name.upper(), name, name.title()])} " for name in names]
    for value in (",".join(written), written, tuple(written)):
        found = opened([(k.READ_POLICY, value, dice.random() < 0.5)]).policy.name
        assert found == (known[0] if known else "adaptive")


elements = st.text(st.characters(blacklist_characters="/", blacklist_categories=["Cs"]), min_size=1, max_size=6)


@given(st.lists(elements, max_size=3), st.lists(elements, max_size=3), elements, elements)
def test_only_the_last_element_of_the_paths_is_compared(
    ours: list[str], theirs: list[str], name: str, other: str
) -> None:
    path, where = "/".join([*ours, name]), "s3a://" + "/".join([*theirs, name])
    assert known_object({"path": where, "size": 5}, path=path).size == 5
    if other != name:
        with pytest.raises(ConfigInvalid):
            known_object({"path": "/".join([*ours, other]), "size": 5}, path=path)
