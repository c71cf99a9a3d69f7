"""Invalid values are refused at build(), with an error that names key and value and shows no secret."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from aioprefetch import Metadata, Operator
from aioprefetch.errors import ConfigInvalid, Error, InvalidPath, InvalidType, Unsupported
from aioprefetch.operator import open_file as k
from aioprefetch.operator.open_file import OpenFileBuilder
from aioprefetch.services import Memory
from aioprefetch.testing.conformance.suite import checks
from tests.unit.operator.open_file.clauses import awaited

Call = Callable[[OpenFileBuilder], OpenFileBuilder]
MEMORY_BYTES = 1 << 20


@pytest.fixture
def builder() -> OpenFileBuilder:
    """A builder on a small memory; no loop runs, and none is needed."""
    return Operator(Memory(), memory_bytes=MEMORY_BYTES, block_bytes=1 << 16).open_file("dir/k")


@pytest.mark.parametrize("must", [False, True])
@pytest.mark.parametrize("key", [k.PREFETCH_BLOCK_SIZE, k.PREFETCH_BLOCK_COUNT])
@pytest.mark.parametrize("value", [0, -1, "0", " -7 "])
def test_blocks_of_no_size_and_no_blocks(builder: OpenFileBuilder, key: str, value: object, must: bool) -> None:
    """S3A's limits: both begin at 1."""
    (builder.must if must else builder.opt)(key, value)
    with pytest.raises(ConfigInvalid, match="at least 1") as caught:
        builder.build()
    messages = str(caught.value)
    assert f"{key}={str(value).strip()!r}" in messages
    assert k.PREFETCH_ENABLED in messages
    assert (caught.value.operation, caught.value.path) == ("open_file", "dir/k")


@checks("reliability:I22")
def test_a_block_that_does_not_fit_into_memory(builder: OpenFileBuilder) -> None:
    """The error of the option carries the keys that were set, and none but known ones."""
    builder.must(k.PREFETCH_BLOCK_SIZE, "2M").opt("fs.s3a.secret.key", "hunter2")
    with pytest.raises(ConfigInvalid) as caught:
        builder.build()
    messages = str(caught.value)
    assert f"{k.PREFETCH_BLOCK_SIZE}='2M'" in messages
    assert f"memory_bytes={MEMORY_BYTES}" in messages
    assert "hunter2" not in messages
    assert caught.value.operation == "open_file"
    builder.must(k.PREFETCH_BLOCK_SIZE, "1M").build()


@pytest.mark.parametrize("value", ["2M", "1G", str((1 << 63) - 1)])
def test_an_opt_of_a_block_that_does_not_fit_into_memory_is_cut(
    builder: OpenFileBuilder, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    """It is a legal value of a job's configuration, whose opens must not fail; one warning says so."""
    k.warn_once.cache_clear()
    builder.propagate({f"mapreduce.job.input.file.option.{k.PREFETCH_BLOCK_SIZE}": value})
    for _ in range(3):
        assert awaited(builder.build()).options.block_bytes == MEMORY_BYTES
    (warning,) = caplog.messages
    assert k.PREFETCH_BLOCK_SIZE in warning
    assert f"memory_bytes={MEMORY_BYTES}" in warning


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("fs.s3a.secret.key", ConfigInvalid),
        ("fs.option.openfile.ec.policy", ConfigInvalid),
        ("", ConfigInvalid),
        (5, ConfigInvalid),
        ("fs.s3a.select.sql", Unsupported),
    ],
)
def test_a_key_that_must_not_be_set(builder: OpenFileBuilder, key: str, kind: type[Error]) -> None:
    """The key is named; its value is not, since it may be secret."""
    with pytest.raises(kind) as caught:
        builder.must(key, "hunter2").build()
    assert repr(str(key)) in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert (caught.value.operation, caught.value.path) == ("open_file", "dir/k")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("fs.option.openfile.read.polcy", k.READ_POLICY),
        ("fs.option.openfile.split.strat", k.SPLIT_START),
        ("fs.s3a.prefetch.blocksize", k.PREFETCH_BLOCK_SIZE),
    ],
)
def test_a_misspelt_key_names_the_nearest_first(builder: OpenFileBuilder, given: str, meant: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        builder.must(given, 1).build()
    messages = str(caught.value)
    assert f"did you mean {meant!r}?" in messages
    assert messages.index(meant) < messages.index("use one of")


def test_a_key_like_no_other_is_not_guessed_at(builder: OpenFileBuilder) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        builder.must("com.example.colour", 1).build()
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("again", ["opt", "must"])
@pytest.mark.parametrize("key", ["fs.example.unknown", "fs.s3a.select.sql", k.PREFETCH_BLOCK_SIZE])
def test_none_forgets_a_key(builder: OpenFileBuilder, key: str, again: str) -> None:
    """As if it had never been set, by opt or must; later calls count again."""
    builder.must(key, "0")
    getattr(builder, again)(key, None).build()
    builder.propagate({f"mapreduce.job.input.file.must.{key}": "0"})
    with pytest.raises(Error):
        builder.build()
    builder.propagate({f"mapreduce.job.input.file.must.{key}": None}).build()


def test_what_is_passed_over_is_noted_once(builder: OpenFileBuilder, caplog: pytest.LogCaptureFixture) -> None:
    """Misspelt keys and policies leave a trace for who looks for it, in any number of opens; their values none."""
    caplog.set_level("DEBUG", "aioprefetch")
    for _ in range(3):
        builder.opt("fs.option.openfile.read.polcy", "hunter2").opt(k.READ_POLICY, "radnom, random").build()
        builder.opt(k.LENGTH, 5).build()
    noted = [record.getMessage() for record in caplog.records if record.levelname == "DEBUG"]
    assert noted == [
        "open_file: 'fs.option.openfile.read.polcy' is not a known key, and opt() ignores it",
        "open_file: 'radnom' is not a known read policy, and is passed over",
    ]


def test_nothing_is_noted_for_who_does_not_look(builder: OpenFileBuilder, caplog: pytest.LogCaptureFixture) -> None:
    """A logger that is enabled later gets the message then."""
    caplog.set_level("INFO", "aioprefetch")
    builder.opt("fs.example.looked.at.later", 1).build()
    assert caplog.records == []
    caplog.set_level("DEBUG", "aioprefetch")
    builder.build()
    assert len(caplog.records) == 1


@checks("reliability:K31")
def test_a_forged_key_stays_on_its_line(builder: OpenFileBuilder) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        builder.must("fs.a\nERROR all is lost", 1).build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind", "messages"),
    [
        (Metadata(path="dir/other", size=5), ConfigInvalid, ["'dir/other'", "'dir/k'"]),
        ("dir/k", InvalidType, ["path", "str"]),
        (5, InvalidType, ["path", "int"]),
        ({}, InvalidType, ["path", "dict"]),
        (SimpleNamespace(size=5), InvalidType, ["path", "SimpleNamespace"]),
        ({"path": "k", "size": "5"}, InvalidType, ["size", "'5'"]),
        ({"path": "k", "size": 5.0}, InvalidType, ["size", "5.0"]),
        (SimpleNamespace(path="k", length=True), InvalidType, ["size", "True"]),
    ],
)
def test_a_status_that_cannot_be_of_the_object(
    builder: OpenFileBuilder, status: object, kind: type[Error], messages: list[str]
) -> None:
    builder.with_status(status)
    with pytest.raises(kind) as caught:
        builder.build()
    assert all(word in str(caught.value) for word in messages)
    assert (caught.value.operation, caught.value.path) == ("open_file", "dir/k")


@pytest.mark.parametrize("size", [-1, -(1 << 40), None])
def test_a_status_without_a_size_leaves_it_open(builder: OpenFileBuilder, size: int | None) -> None:
    """Listings say -1 where they do not know."""
    assert awaited(builder.with_status({"name": "k", "size": size}).build()).size is None


@pytest.mark.parametrize("config", [None, [("a", 1)], "fs.option.openfile.length"])
def test_propagation_needs_a_mapping(builder: OpenFileBuilder, config: object) -> None:
    with pytest.raises(InvalidType, match=type(config).__name__):
        builder.propagate(config)  # type: ignore[arg-type]


def test_keys_of_a_configuration_that_are_no_text_are_passed_over(builder: OpenFileBuilder) -> None:
    builder.propagate({5: "x", None: 1}, option_prefix="", must_prefix="5").build()  # type: ignore[dict-item]


def test_the_path_is_checked_at_once() -> None:
    """It cannot change until build()."""
    operator = Operator.bare(Memory())
    for path, kind in (("a/../k", InvalidPath), (None, InvalidType), (b"k", InvalidType)):
        with pytest.raises(kind) as caught:
            operator.open_file(path)  # type: ignore[arg-type]
        assert caught.value.operation == "open_file"
