"""A new option is one row: it is checked, read from variables, URIs, Spark's texts, fsspec's words and the command
line, answered where it is misspelt, and in the types and tables that are made from rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import aioprefetch as ap
from aioprefetch.credentials import Secret
from aioprefetch.fsspec.options import settings_of, wrapped
from aioprefetch.operator.from_uri import configure, option_from_text, store_options
from aioprefetch.options import COUNT, FLAG, OBJECT, SECONDS, SECRET, SIZE, Choice, Text, check, option, table_of
from aioprefetch.services.memory import Memory
from aioprefetch.spark.options import option_name
from aioprefetch.spark.settings import parse_options
from tests.repository import option_files

# Each kind of options: what is right, what is kept, a text, and what is wrong with what is said of it.
VALUES: dict[str, tuple[Any, Any, str, Any, str]] = {
    "tempo": (120, 120, "120", 0, "tempo must be an integer of at least 1, not 0"),
    "loud": (True, True, "yes", "yes", "loud must be True or False, not 'yes'"),
    "key": ("minor", "minor", "Minor", "dur", "key must be one of 'major', 'minor', not 'dur'"),
    "page_bytes": ("4 KiB", 4096, "4k", -1, "page_bytes must be an integer of at least 1, not -1"),
    "pause_seconds": (0.5, 0.5, ".5", True, "pause_seconds must be a number of seconds above 0, not True"),
    "pass_phrase": (
        "canary",
        Secret("canary"),
        "env:CHOIR_PHRASE",
        5,
        "pass_phrase must be text, or env:NAME; it is a int",
    ),
    "conductor": ("Ann", "Ann", "Ann", "", "conductor must be the name of a conductor, not ''"),
}


@dataclass(frozen=True, kw_only=True)
class Choir(Memory):
    """A store of our own.

    Parameters
    ----------
    tempo
        The beats of a minute. There are no others.
    """

    tempo: int = option(
        90, COUNT, also="fsspec:speed boto3:BeatRate obstore:pace hadoop:beat.rate spark:beatsPerMinute"
    )
    loud: bool = option(False, FLAG)
    key: str = option("major", Choice("major", "minor"))
    page_bytes: int | str = option(8 << 20, SIZE)
    pause_seconds: float = option(1.0, SECONDS, doc="The pause between two songs.")
    pass_phrase: str | Secret | None = option(None, SECRET, also="fsspec:phrase spark:phraseToken")
    conductor: str | None = option(None, Text("the name of a conductor"), hint="a person", also="other:maestro")
    baton: object = option(None, OBJECT)
    encore: bool = option(False, FLAG, given="recipe")

    schemes: ClassVar[tuple[str, ...]] = ("choir",)

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def from_uri(cls, uri: str, **options: Any) -> Choir:
        """The recipe for ``choir://name``."""
        return cls(name=uri.partition("://")[2], **options)


@dataclass(frozen=True, kw_only=True)
class Louder(Choir):
    """Another store, with one more option."""

    volume: int = option(5, COUNT, also="fsspec:gain")

    schemes: ClassVar[tuple[str, ...]] = ("louder",)


@pytest.fixture(autouse=True)
def registered(register: Callable[..., None]) -> None:
    """The schemes of the stores, by entry points."""
    register(**{scheme: f"{__name__}:{kind}" for scheme, kind in (("choir", "Choir"), ("louder", "Louder"))})


def kept(options: dict[str, Any]) -> Any:
    """The service of a URL with these options."""
    return configure("choir://poems", options)[0]


@pytest.mark.parametrize("name", VALUES)
def test_it_is_an_option_by_uri_which_is_checked(name: str) -> None:
    given, expected, _, wrong, message = VALUES[name]
    assert getattr(kept({name: given}), name) == expected
    assert getattr(kept({name: None}), name) == getattr(Choir(), name)
    assert getattr(dataclasses.replace(kept({name: given}), loud=True), name) == (True if name == "loud" else expected)
    with pytest.raises(ap.ConfigInvalid) as caught:
        ap.Operator.from_uri("choir://poems", **{name: wrong})
    assert caught.value.message == message
    assert caught.value.operation == "configure"


@pytest.mark.parametrize("name", VALUES)
def test_it_is_a_variable_and_an_option_of_the_command_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected, text, _, _ = VALUES[name]
    if name == "pass_phrase":
        monkeypatch.setenv("CHOIR_PHRASE", "canary")
        with pytest.raises(ap.ConfigInvalid, match="other users can read a command line"):
            option_from_text("choir", name, "canary")
        expected = Secret("env:CHOIR_PHRASE")
    assert getattr(kept({name: option_from_text("choir", name, text)}), name) == expected
    variable = f"AIOPREFETCH_{name.upper()}"
    monkeypatch.setenv(variable, text)
    assert getattr(kept({}), name) == (Secret(f"env:{variable}") if name == "pass_phrase" else expected)
    for other in ("tempo", "loud", "page_bytes", "pause_seconds"):
        monkeypatch.setenv(f"AIOPREFETCH_{other.upper()}", "x")
        with pytest.raises(ap.ConfigInvalid, match=f"AIOPREFETCH_{other.upper()}='x' is not "):
            kept({})
        monkeypatch.delenv(f"AIOPREFETCH_{other.upper()}")


def test_one_without_a_text_form_has_neither() -> None:
    assert kept({"baton": len}).baton is len
    with pytest.raises(ap.ConfigInvalid, match="the option baton cannot be written as text"):
        option_from_text("choir", "baton", "x")
    with pytest.raises(ap.ConfigInvalid, match=r"not an option for choir:// but of ap.services.Choir"):
        kept({"encore": True})
    assert "encore" not in store_options("choir")


def test_it_is_an_option_of_spark() -> None:
    """In camel case, or by the name that its row has for Spark."""
    texts = {"beatsPerMinute": "120", "loud": "true", "pageBytes": "4k", "phraseToken": "canary", "pauseSeconds": "2"}
    settings = parse_options({"path": "choir://poems/x", **texts})
    assert settings.operator == {
        "tempo": 120,
        "loud": True,
        "page_bytes": 4096,
        "pass_phrase": "canary",
        "pause_seconds": 2.0,
    }
    assert "canary" not in repr(settings)
    assert option_name("region") == "region"
    with pytest.raises(ap.ConfigInvalid, match="the option beatsPerMinute='0' is not an integer of at least 1"):
        parse_options({"path": "choir://poems/x", "beatsPerMinute": "0"})
    with pytest.raises(ap.ConfigInvalid, match="did you mean beatsPerMinute"):
        parse_options({"path": "choir://poems/x", "beatsPerMinut": "5"})


def test_it_is_a_word_of_fsspec() -> None:
    assert settings_of("choir", {"speed": 5, "loud": True}).store == {"tempo": 5, "loud": True}
    assert "canary" not in repr(wrapped({"phrase": "canary"}, "choir"))
    with pytest.raises(ap.ConfigInvalid, match="'speed' contradicts another word for 'tempo'"):
        settings_of("choir", {"tempo": 4, "speed": 5})


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("tempoo", "did you mean 'tempo'?"),
        ("BeatRate", "it is called 'tempo' here;"),
        ("pace", "it is called 'tempo' here;"),
        ("maestro", "it is called 'conductor' here (a person);"),
    ],
)
def test_it_is_answered_where_it_is_misspelt_or_another_word(word: str, says: str) -> None:
    with pytest.raises(ap.ConfigInvalid) as caught:
        ap.Operator.from_uri("choir://poems", **{word: 1})  # type: ignore[arg-type]
    assert says in caught.value.message


def test_it_is_in_the_tables_and_in_the_types() -> None:
    table = option_files.options_table(Choir, by_uri=True)
    assert "| `tempo` | int |  | `90` | yes | The beats of a minute. There are no others. |" in table
    assert "| `page_bytes` | int | bytes | 8 MiB | yes |  |" in table
    assert "| `pause_seconds` | float | seconds | `1.0` | yes | The pause between two songs. |" in table
    assert "| `encore` | bool |  | `False` | no |" in table
    source = option_files.typed_dict(
        "ChoirOptions", ["TypedDict"], "Options.", option_files.rows_by_uri(Choir).values()
    )
    for line in (
        "tempo: int | None",
        'key: Literal["major", "minor"] | None',
        "page_bytes: ByteCount | None",
        "pass_phrase: str | Secret | None",
    ):
        assert f"    {line}\n" in source
    assert "encore" not in source


def test_a_further_row_of_a_derived_recipe() -> None:
    service, _ = configure("louder://poems", {"volume": 6, "tempo": 7})
    assert service == Louder(name="poems", volume=6, tempo=7)
    assert settings_of("louder", {"gain": 6}).store == {"volume": 6}
    assert parse_options({"path": "louder://x", "volume": "6"}).operator == {"volume": 6}
    assert list(table_of(Louder))[-1] == "volume"


def test_a_recipe_of_a_list_of_options_keeps_them_also_where_its_base_has_rows() -> None:
    """Values are its own to check."""

    @dataclass(frozen=True, kw_only=True)
    class Listed(Choir):
        label: str = ""

        uri_options: ClassVar[tuple[str, ...]] = ("label", "tempo")

    rows = table_of(Listed)
    assert list(rows)[:2] == ["label", "tempo"]
    assert rows["tempo"] == table_of(Choir)["tempo"]
    assert rows["label"].read("a", "label") == "a"
    assert Listed(label="") == Listed.from_uri("choir://", label="")
