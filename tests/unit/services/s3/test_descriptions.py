"""What describes an object beside its bytes: kept by copies as it came, and shown as the text that it is."""

from collections.abc import Awaitable, Callable
from itertools import product

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import InvalidArgument
from tests.profile import few_rows
from tests.stores.key_server import PART, Bent, KeyServer, error

SMALL, LARGE = b"one", bytes(PART + 1)
TEXTS = {
    "content-type": "text/plain",
    "content-encoding": "br",
    "content-disposition": "attachment; filename=\"a\"; filename*=UTF-8''%C3%A9",
    "content-language": "de, fr",
    "cache-control": "max-age=60",
    "expires": "Thu, 01 Dec 2033 16:00:00 GMT",
    "x-amz-meta-who": "someone",
}
# As stores send and keep them: UTF-8, and words of RFC 2047 where S3 itself encodes them.
BEYOND_ASCII = {
    **TEXTS,
    "content-disposition": 'attachment; filename="é 日本.csv"',
    "content-language": "é",
    "cache-control": "max-age=60, x=ü",
    "expires": "morgen früh",
    "x-amz-meta-who": "jemand, é 日本 \U0001f980",
    "x-amz-meta-word": "=?UTF-8?B?w6k=?=",
}


def on_the_wire(texts: dict[str, str]) -> dict[str, str]:
    """The headers of UTF-8, each byte a character."""
    return {name: text.encode().decode("latin-1") for name, text in texts.items()}


async def between_stores(one: Operator, other: Operator, target: Operator) -> None:
    await ap.copy((one, "k"), (target, "l"))


async def of_a_directory(one: Operator, other: Operator, target: Operator) -> None:
    await ap.copy((one, ""), (target, "d/"))


async def within_one(one: Operator, other: Operator, target: Operator) -> None:
    await one.copy("k", "l")


async def moved(one: Operator, other: Operator, target: Operator) -> None:
    await one.move("k", "l")


COPIES: dict[str, tuple[Callable[[Operator, Operator, Operator], Awaitable[None]], str]] = {
    "between stores": (between_stores, "l"),
    "of a directory": (of_a_directory, "d/k"),
    "within one": (within_one, "l"),
    "moved": (moved, "l"),
}


@pytest.mark.parametrize(
    ("way", "beyond_ascii", "length", "has_copy"),
    few_rows(product(COPIES, [False, True], [len(SMALL), len(LARGE), 0], [True, False]), 5),
)
async def test_copies_keep_all(way: str, beyond_ascii: bool, length: int, has_copy: bool) -> None:
    """Byte for byte, by the store and by reading and writing, whole and in parts."""
    copy, target = COPIES[way]
    texts, data = BEYOND_ASCII if beyond_ascii else TEXTS, {len(SMALL): SMALL, len(LARGE): LARGE, 0: b""}[length]
    if way == "moved" and data is LARGE and not has_copy:
        return  # The server gives equal bytes one ETag, so its source looks overwritten.
    headers = on_the_wire(texts)
    async with KeyServer({"k": data}) as one, KeyServer({}) as other, one.operator() as a, other.operator() as b:
        one.descriptions["k"] = headers
        if not has_copy:
            one.bent = [Bent("copy", error(501, "NotImplemented"), times=9)]
        await copy(a, a, b)
        server = other if way in ("between stores", "of a directory") else one
        assert server.descriptions[target] == headers


async def test_parts_that_the_store_copies_keep_all() -> None:
    """A copy with a condition that the store has for parts alone."""
    headers = on_the_wire(BEYOND_ASCII)
    async with KeyServer({"k": LARGE}) as server, server.operator() as op:
        server.descriptions["k"] = headers
        await op.copy("k", "l", if_not_exists=True)
        assert "copypart" in server.verbs
        assert server.descriptions["l"] == headers


async def test_what_is_written_is_found() -> None:
    """Metadata of a user beyond ASCII is refused before anything is sent, with the way round."""
    async with KeyServer({}) as server, server.operator() as op:
        for data in (SMALL, LARGE):
            await op.write("k", data, content_disposition='attachment; filename="é.csv"', cache_control="x=ü")
            assert server.descriptions["k"]["content-disposition"].encode("latin-1").decode().endswith('"é.csv"')
            found = await op.stat("k")
            assert (found.content_disposition, found.cache_control) == ('attachment; filename="é.csv"', "x=ü")
        server.asked.clear()
        with pytest.raises(InvalidArgument, match="encode"):
            await op.write("k", SMALL, user_metadata={"who": "é"})
        assert server.asked == []


async def test_a_stat_shows_the_text() -> None:
    """UTF-8 where it is that, else Latin-1; words of RFC 2047 as they are."""
    async with KeyServer({"k": SMALL}) as server, server.operator() as op:
        server.descriptions["k"] = {**on_the_wire(BEYOND_ASCII), "x-amz-meta-latin": "\xe9"}
        found = await op.stat("k")
        assert found.content_disposition == BEYOND_ASCII["content-disposition"]
        assert (found.content_language, found.expires) == ("é", "morgen früh")
        assert found.user_metadata == {
            "who": BEYOND_ASCII["x-amz-meta-who"],
            "word": "=?UTF-8?B?w6k=?=",
            "latin": "é",
        }
