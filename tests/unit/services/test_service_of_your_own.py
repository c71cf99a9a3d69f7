"""A service that another distribution registers under the entry point group works as a built-in one does."""

import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.credentials import Secret
from aioprefetch.operator import from_uri
from tests.unit.services.toy import Toy

Register = Callable[..., None]


# Options that are not among those of our own stores: type checkers know these alone.
SHOUT: dict[str, Any] = {"shout": True}
TWICE: dict[str, Any] = {"times": 2}


@pytest.fixture
def toy(register: Register) -> None:
    """The distribution of the toy."""
    register(toy="tests.unit.services.toy:Toy")


@pytest.mark.usefixtures("toy")
async def test_an_operator_over_a_uri_of_it() -> None:
    async with ap.Operator.from_uri("TOY://poems", **SHOUT, memory_bytes=1 << 24) as op:
        assert op.info.url == "toy://poems"
        assert op.options.memory_bytes == 1 << 24
        assert await op.read("rose", offset=2, size=4) == b"ROSE"
        assert await op.read("rose", suffix=4) == b"ROSE"
        async with op.reader("rose") as reader:
            assert await reader.read_at(22, 100) == b"ROSE"
            assert reader.size == 26
        with pytest.raises(ap.NotFound):
            await op.read("tulip")
        with pytest.raises(ap.RangeNotSatisfied):
            await op.read("rose", offset=26, size=1)
        with pytest.raises(ap.Unsupported):
            await op.write("rose", b"")


@pytest.mark.usefixtures("toy")
def test_a_file_at_a_url_of_it() -> None:
    with ap.sync.open("toy://poems/rose", **TWICE, attempts_max=1) as file:
        assert file.read() == b"a rose is a rose is a rose" * 2


@pytest.mark.usefixtures("toy")
def test_its_options_are_checked_and_read_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their types are those of the fields; an option without a text form has no variable."""
    with pytest.raises(ap.ConfigInvalid, match="did you mean 'shout'"):
        ap.Operator.from_uri("toy://poems", shuot=True)  # type: ignore[call-arg]
    for name, text in {"SHOUT": "yes", "TIMES": "3", "PASSWORD": "canary", "TAGS": "a"}.items():
        monkeypatch.setenv(f"AIOPREFETCH_{name}", text)
    service, rest = from_uri.configure("toy://poems", {"attempts_max": 2})
    assert service == Toy(name="poems", shout=True, times=3, password="env:AIOPREFETCH_PASSWORD")
    assert rest == {"attempts_max": 2}
    monkeypatch.setenv("AIOPREFETCH_TIMES", "x")
    with pytest.raises(ap.ConfigInvalid, match="AIOPREFETCH_TIMES='x' is not an integer"):
        ap.Operator.from_uri("toy://poems")
    assert Secret("env:AIOPREFETCH_PASSWORD").reveal() == "canary"


@pytest.mark.usefixtures("toy")
def test_its_scheme_is_among_the_supported() -> None:
    with pytest.raises(ap.ConfigInvalid) as caught:
        ap.Operator.from_uri("gopher://x")
    supported = "s3, s3a, http, https, file, memory, gs, gcs, az, azure, abfs, abfss, adl, toy"
    assert caught.value.message == f"unknown scheme 'gopher'; supported: {supported}"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("nowhere_at_all:Toy", "cannot be loaded: ModuleNotFoundError"),
        ("tests.unit.services.toy:Missing", "cannot be loaded: AttributeError"),
        ("tests.unit.services.toy:TEXTS", "is not a recipe for that scheme: it has no schemes"),
        ("aioprefetch.services.memory:Memory", "is not a recipe for that scheme: its schemes are memory"),
    ],
)
def test_a_broken_entry_point_names_its_distribution(register: Register, value: str, why: str) -> None:
    register(toy=value)
    for attempt in (ap.Operator.from_uri, lambda uri: ap.sync.open(f"{uri}/k")):
        with pytest.raises(ap.ConfigInvalid) as caught:
            attempt("toy://poems")
        assert "toy:// of the distribution 'toy-store'" in caught.value.message
        assert why in caught.value.message
        assert caught.value.context == {"distribution": "toy-store", "entry_point": value}
        assert (caught.value.__cause__ is not None) == ("cannot be loaded" in why)


def test_entry_points_are_looked_up_for_unknown_schemes_alone(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor can one take the place of a built-in service."""
    register(memory="tests.unit.services.toy:Toy")

    def refuse(**selected: str) -> None:
        raise AssertionError(selected)

    monkeypatch.setattr(importlib.metadata, "entry_points", refuse)
    assert ap.Operator.from_uri("memory://x").info.scheme == "memory"
    with pytest.raises(AssertionError, match=r"aioprefetch\.services"):
        ap.Operator.from_uri("toy://x")
