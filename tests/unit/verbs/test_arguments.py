"""No invalid argument reaches a store: each verb, option and service refuses it with the same kind of error."""

import inspect
import types
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from obstore.store import MemoryStore

from aioprefetch import Operator
from aioprefetch.errors import ConditionNotMatch, InvalidArgument, InvalidType, Unsupported
from aioprefetch.layers import RetryLayer
from aioprefetch.operator import open_file
from aioprefetch.operator import options as operator_options
from aioprefetch.reader import options, reader
from aioprefetch.services import S3, Fs, Http, Memory, ObspecStore
from aioprefetch.verbs import listing, requests, upload, writer

# Nothing listens there: a request that is sent fails otherwise.
NOWHERE = "http://127.0.0.1:1"

SERVICES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda folder: Memory(),
    "fs": lambda folder: Fs(str(folder)),
    "http": lambda folder: Http(f"{NOWHERE}/"),
    "s3": lambda folder: S3(
        bucket="bucket", endpoint_url=NOWHERE, region="r", access_key_id="i", secret_access_key="s"
    ),
    "obspec": lambda folder: ObspecStore(MemoryStore()),
}

VERBS = sorted(name for name, one in vars(Operator).items() if inspect.isfunction(one) and not name.startswith("_"))
# Types of modules that load at first use, which the module of Operator does not hold.
MODULES = (listing, open_file, operator_options, options, reader, requests, upload, writer)
TYPES = {name: one for module in MODULES for name, one in vars(module).items()}
# Good values of what a call cannot do without.
REQUIRED: dict[str, Any] = {
    "path": "k",
    "source": "k",
    "target": "t",
    "prefix": "d/",
    "offset": 0,
    "buffer": bytearray(1),
    "ranges": [(0, 1)],
    "data": b"x",
    "layer": RetryLayer(),
}
DIRECTORY = {"create_dir": "d/", "delete_all": "d/"}

CANDIDATES: tuple[Any, ...] = (None, 5, 1.5, True, "nonsense", b"x", ["x"], {"a": 1}, object())


def hinted(hint: Any) -> tuple[Any, ...]:
    """The types that a hint names, unions taken apart."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(one for part in get_args(hint) for one in hinted(part))
    if get_origin(hint) is Literal:
        return ()
    return (get_origin(hint) or hint,)


def is_wrong(value: Any, name: str, hint: Any) -> bool:
    """Whether a value is of a type that the hint does not name."""
    allowed = hinted(hint)
    if name in ("buffer", "data"):
        return not isinstance(value, bytes | list)
    if isinstance(value, bool):
        return bool not in allowed
    if isinstance(value, list | str) and name in ("ranges", "policy", "prefetch_growth"):
        return True
    if isinstance(value, Mapping) and name == "user_metadata":
        return True
    if isinstance(value, int) and float in allowed:
        return False
    return not any(isinstance(value, one) for one in allowed if isinstance(one, type))


def typed_arguments(verb: str) -> dict[str, Any]:
    """The arguments of a verb with their types; those of a typed dictionary one by one."""
    method = getattr(Operator, verb)
    hints = get_type_hints(method, localns=TYPES)
    typed: dict[str, Any] = {}
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            (options_type,) = get_args(hints[parameter.name])
            typed |= get_type_hints(options_type)
        elif parameter.name not in ("self", "positional"):  # The latter takes nothing.
            typed[parameter.name] = hints[parameter.name]
    return typed


def wrong_calls(verb: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls of a verb, each with one wrong argument, and its name."""
    hints = typed_arguments(verb)
    good = {name: REQUIRED[name] for name in hints if name in REQUIRED}
    if verb in DIRECTORY:
        good = dict.fromkeys(good, DIRECTORY[verb])
    for name in hints:
        for value in CANDIDATES:
            if is_wrong(value, name, hints[name]):
                yield f"{verb}({name}={value!r})", {**good, name: value}


async def called(operator: Operator, verb: str, arguments: dict[str, Any]) -> object:
    """What a verb returns, awaited where it has to be."""
    result = getattr(operator, verb)(**arguments)
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def each_operator(folder: Path, names: Iterable[str] = SERVICES) -> AsyncIterator[dict[str, Operator]]:
    """An Operator over each service."""
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(Operator(SERVICES[name](folder))) for name in names}


def test_all_verbs_are_looked_at() -> None:
    assert {"read", "view", "read_into", "read_ranges", "reader", "stat", "list", "write", "copy"} <= set(VERBS)
    calls = [call for verb in VERBS for call, _ in wrong_calls(verb)]
    assert len(calls) > 250
    for call in ("read(if_match=5)", "write(user_metadata={'a': 1})", "presign(method='nonsense')"):
        assert call in calls


@pytest.mark.parametrize("verb", VERBS)
async def test_an_argument_of_a_wrong_type_is_refused_before_a_request(verb: str, tmp_path: Path) -> None:
    outcomes: dict[str, str] = {}
    async with each_operator(tmp_path) as operators:
        for service, operator in operators.items():
            before = dict(operator.statistics)
            for call, arguments in wrong_calls(verb):
                try:
                    outcomes[f"{service}: {call}"] = f"returned {await called(operator, verb, arguments)!r}"
                except InvalidArgument as error:
                    if not error.operation:
                        outcomes[f"{service}: {call}"] = f"{error!r} names no operation"
                except Exception as error:
                    outcomes[f"{service}: {call}"] = repr(error)
            assert dict(operator.statistics) == before, service
    assert outcomes == {}


NO_HEADER = ("a\r\nX-Other: y", "a\nb", "a\0b", "a\tb", "a\x7fb", "a\ud800b")
INVALID_VALUES: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name}={value!r}": ("write", {name: value})
    for name in ("content_type", "content_encoding", "content_disposition", "cache_control")
    for value in NO_HEADER
}
INVALID_VALUES |= {
    f"user_metadata={value!r}": ("write", {"user_metadata": value})
    for value in (*({"a": text} for text in NO_HEADER), {"a": "ü"}, {"": "x"}, {"a b": "x"}, {"a:b": "x"}, {"ü": "x"})
}
INVALID_VALUES |= {
    f"{verb} {name}={value!r}": (verb, {name: value})
    for verb, name in (
        *(("read", "if_match"), ("view", "if_none_match"), ("read_ranges", "if_match")),
        *(("view_ranges", "if_match"), ("write", "if_match"), ("reader", "etag")),
    )
    for value in ("", '""', "W/", "a\r\nX: y", '"a", "b"', "日")
}
INVALID_VALUES |= {
    f"{verb} version=''": (verb, {"version": ""}) for verb in ("read", "read_ranges", "reader", "stat", "presign")
}
INVALID_VALUES |= {f"method={text!r}": ("presign", {"method": text}) for text in ("PATCH", "get", "", "POST")}


async def test_an_invalid_value_is_refused_before_a_request(tmp_path: Path) -> None:
    outcomes: dict[str, str] = {}
    async with each_operator(tmp_path) as operators:
        for service, operator in operators.items():
            before = dict(operator.statistics)
            for name, (verb, options) in INVALID_VALUES.items():
                arguments = {key: REQUIRED[key] for key in typed_arguments(verb) if key in REQUIRED} | options
                try:
                    outcomes[f"{service}: {name}"] = f"returned {await called(operator, verb, arguments)!r}"
                except InvalidArgument as error:
                    if isinstance(error, InvalidType) or error.path != "k" or "\n" in str(error):
                        outcomes[f"{service}: {name}"] = repr(error)
            assert dict(operator.statistics) == before, service
    assert outcomes == {}


async def test_the_methods_of_a_presigned_url_are_named() -> None:
    async with Operator(Memory()) as operator:
        with pytest.raises(InvalidArgument, match="method must be one of GET, HEAD, PUT, DELETE, not 'PATCH'"):
            await operator.presign("k", method="PATCH")  # type: ignore[arg-type]


async def test_an_etag_may_be_in_the_quotes_that_http_puts_around_it(tmp_path: Path) -> None:
    async with each_operator(tmp_path, ("memory", "fs", "obspec")) as operators:
        for operator in operators.values():
            await operator.write("k", b"x")
            etag = (await operator.stat("k")).etag
            for spelling in (etag, f'"{etag}"', f' "{etag}" '):
                assert await operator.read("k", if_match=spelling) == b"x"
                assert await operator.read_ranges("k", [(0, 1)], if_match=spelling) == [b"x"]
                with pytest.raises(ConditionNotMatch):
                    await operator.read("k", if_none_match=spelling)
                async with operator.reader("k", etag=spelling) as reader:
                    assert await reader.read() == b"x"
            assert (await operator.write("k", b"y", if_match=f'"{etag}"')).size == 1
            with pytest.raises(ConditionNotMatch):
                await operator.read("k", if_match=f'W/"{etag}"')


async def test_valid_values_are_passed_on_unchanged() -> None:
    given: dict[str, Any] = {
        "content_type": "text/plain; charset=utf-8",
        "content_disposition": 'attachment; filename="ü.txt"',
        "user_metadata": {"x-a.b_c": "", "n": "~ value !"},
    }
    async with Operator(Memory()) as operator:
        await operator.write("k", b"x", **given)
        found = asdict(await operator.stat("k"))
        assert {name: found[name] for name in given} == given
        assert await operator.read("k", timeout_seconds=float("inf")) == b"x"


async def test_a_copy_where_nothing_can_be_written_names_the_source(tmp_path: Path) -> None:
    async with Operator(SERVICES["http"](tmp_path)) as operator:
        with pytest.raises(Unsupported) as caught:
            await operator.copy("x", "y")
    assert (caught.value.operation, caught.value.path) == ("copy", "x")


def test_every_option_of_a_verb_has_a_name() -> None:
    """A misspelled option is a TypeError, and a type checker sees it too."""
    for verb in VERBS:
        parameters = inspect.signature(getattr(Operator, verb)).parameters.values()
        keywords = [each for each in parameters if each.kind is each.VAR_KEYWORD]
        assert [each.annotation for each in keywords] in (
            [],
            *(
                [f"Unpack[{kind}Options]"]
                for kind in ("Read", "Ranges", "Stat", "Write", "Upload", "Copy", "Move", "Presign")
            ),
        ), verb


def test_a_misspelled_option_of_a_reader_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="polcy"):
        Operator(Memory()).reader("k", polcy="random")  # type: ignore[call-arg]


async def test_a_misspelled_option_of_a_write_is_a_type_error() -> None:
    async with Operator(Memory()) as operator:
        with pytest.raises(TypeError, match="called 'content_type'"):
            await operator.write("k", b"x", contenttype="text/plain")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="if_matches"):
            operator.writer("k", if_matches="x")  # type: ignore[call-arg]
        assert not await operator.exists("k")
