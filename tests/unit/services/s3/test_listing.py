"""Pages of a listing: order, tokens, start_after, and answers that cannot be right."""

import gc
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioprefetch.accessor.http_headers import unquote_etag
from aioprefetch.errors import ProtocolError
from aioprefetch.services.s3.responses import list_page_of, parse_list_page
from aioprefetch.values import ListRequest
from tests.profile import each_of
from tests.stores.key_server import Asked, Bent, KeyServer, Said
from tests.unit.services.s3.stores import Store


async def test_files_have_size_etag_and_time(bucket: Store) -> None:
    """Times are in UTC, ETags without quotes."""
    etag = (await bucket.put("k", b"four")).etag
    (entry,) = (await bucket.page()).entries
    assert (entry.size, entry.etag) == (4, etag)
    assert entry.last_modified is not None
    assert entry.last_modified.utcoffset() == timedelta(0)


async def test_pages_hold_at_most_a_thousand(moto: Store) -> None:
    """A larger wish is cut, since S3 cuts it too."""
    await moto.page(page_entries_max=5000)
    assert "max-keys=1000" in moto.server.requests[-1].query


def document(reply: dict[str, Any]) -> bytes:
    """A page in XML, with the fields under botocore's names."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "".join(f"<{name}>{text(one)}</{name}>" for name, one in value.items())
        return escape(value.isoformat() if isinstance(value, datetime) else str(value))

    fields = "".join(
        f"<{name}>{text(one)}</{name}>"
        for name, value in reply.items()
        for one in (value if isinstance(value, list) else [value])
    )
    return f"<ListBucketResult><Name>b</Name>{fields}</ListBucketResult>".encode()


def page_of(reply: dict[str, Any], **fields: Any) -> Any:
    """The page that a response means under the root ``root/``."""
    request = ListRequest(path="d/", **fields)
    return list_page_of(parse_list_page(document(reply), "root/", "d/"), request)


def test_the_root_is_taken_off_and_the_directory_left_out() -> None:
    """The marker of the listed directory is no entry of it; markers below are directories."""
    zone = timezone(timedelta(hours=2))
    page = page_of(
        {
            "CommonPrefixes": [{"Prefix": "root/d/z/"}],
            "Contents": [
                {"Key": "root/d/", "Size": 0},
                {"Key": "root/d/k", "Size": 3, "ETag": '"e"', "LastModified": datetime(2026, 1, 1, 2, tzinfo=zone)},
                {"Key": "root/d/m/", "Size": 0},
            ],
        }
    )
    assert [(entry.path, entry.kind) for entry in page.entries] == [
        ("d/k", "file"),
        ("d/m/", "directory"),
        ("d/z/", "directory"),
    ]
    assert (page.entries[0].etag, page.entries[0].last_modified) == ("e", datetime(2026, 1, 1, tzinfo=UTC))
    assert page.next_token is None


def test_an_empty_page_may_have_a_successor() -> None:
    """Stores that skip deleted keys send such pages."""
    assert page_of({"IsTruncated": True, "NextContinuationToken": "t"}).next_token == "t"


@each_of(
    ("reply", "said"),
    [
        ({"Contents": [{"Key": "other/k", "Size": 1}]}, "holds 'other/k'"),
        ({"CommonPrefixes": [{"Prefix": "root/dx/"}]}, "holds 'root/dx/'"),
        ({"Contents": [{"Key": "root/d/k"}]}, "no valid size for 'root/d/k'$"),
        ({"Contents": [{"Key": "root/d/k", "Size": -1}]}, "no valid size for 'root/d/k': -1"),
        ({"Contents": [{"Key": "root/d/k", "Size": 1 << 70}]}, "no valid size for 'root/d/k': 118"),
        ({"Contents": [{"Key": "x" * 70_000, "Size": 1}]}, "holds '" + "x" * 199 + "…'$"),
        ({"IsTruncated": True}, "names no next one"),
        ({"IsTruncated": True, "NextContinuationToken": "same"}, "would never end"),
    ],
)
def test_impossible_pages(reply: dict[str, Any], said: str) -> None:
    """Keys from elsewhere, senseless sizes, and pages without end are refused."""
    with pytest.raises(ProtocolError) as caught:
        page_of(reply, page_token="same")
    assert re.search(said, caught.value.message)


async def test_a_page_may_have_more_entries_than_were_asked_for() -> None:
    """Of stores that do not count directories, or whose pages have one size: nothing is lost."""
    keys = {f"k{number:04}": b"" for number in range(1500)}

    def whole(asked: Asked, right: Said) -> Said:
        rows = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
        more = "<CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>"
        return Said(200, f"<R><IsTruncated>false</IsTruncated>{rows}{more}</R>".encode())

    async with KeyServer({}, Bent("list", whole, times=9)) as server, server.operator() as op:
        assert [entry.path async for entry in op.list("")] == [*keys, "p/"]


@each_of("total", [3, 1000, 1001, 3000, 4500])
async def test_all_is_deleted_where_tokens_are_offsets(total: int) -> None:
    """What is deleted moves the rest forward, past the next page: there is another look."""

    def page_at(asked: Asked, right: Said) -> Said:
        start = int(asked.query.get("continuation-token", ["0"])[0])
        keys = sorted(key for key in server.objects if key.startswith(asked.query["prefix"][0]))
        rows = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys[start : start + 1000])
        rest = len(keys) > start + 1000
        more = f"<NextContinuationToken>{start + 1000}</NextContinuationToken>" if rest else ""
        return Said(200, f"<R><IsTruncated>{str(rest).lower()}</IsTruncated>{more}{rows}</R>".encode())

    objects = {f"d/{number:05}": b"" for number in range(total)}
    async with KeyServer(objects, Bent("list", page_at, times=99)) as server, server.operator() as op:
        await op.delete_all("d/")
        assert server.objects == {}
        assert server.verbs.count("list") <= 2 + 2 * total // 1000


async def test_what_a_store_says_to_have_deleted_and_lists_again_is_deleted_again() -> None:
    """Each key of one batch stays at its first deletion, which the store calls done."""
    kept = {f"d/{number:05}" for number in range(1000, 2000)}

    def done(asked: Asked, right: Said) -> Said:
        late = {key: server.objects[key] for key in kept & server.objects.keys() if f">{key}<" in asked.body.decode()}
        said = server.done(asked)
        server.objects |= late
        server.times |= dict.fromkeys(late, server.now)
        kept.difference_update(late)
        return said

    objects = {f"d/{number:05}": b"" for number in range(3000)}
    async with KeyServer(objects, Bent("deletes", done, times=9)) as server, server.operator() as op:
        await op.delete_all("d/")
        assert (server.objects, kept) == ({}, set())
        assert (server.verbs.count("list"), server.verbs.count("deletes")) == (3, 4)


async def test_a_listing_that_never_shrinks_ends() -> None:
    """Of a store that still lists what is deleted, or does not delete."""
    keys = [f"d/{number:05}" for number in range(1500)]

    def stale(asked: Asked, right: Said) -> Said:
        rows = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
        return Said(200, f"<R><IsTruncated>false</IsTruncated>{rows}</R>".encode())

    async with KeyServer(dict.fromkeys(keys, b""), Bent("list", stale, times=99)) as server, server.operator() as op:
        await op.delete_all("d/")
        assert server.objects == {}
        assert server.verbs.count("list") <= 3


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_is_none_in_utc_is_left_out(when: str) -> None:
    body = f"<R><Contents><Key>k</Key><Size>1</Size><LastModified>{when}</LastModified></Contents></R>".encode()
    assert parse_list_page(body, "", "").entries[0].last_modified is None


@pytest.mark.parametrize("ending", [b"</ListBucketResult>", b"<cut short"])
def test_a_parsed_page_leaves_no_garbage(ending: bytes) -> None:
    """Handlers of expat refer to the parser that they belong to."""
    body = b"<ListBucketResult><Contents><Key>k</Key><Size>1</Size></Contents><KeyCount>1</KeyCount>" + ending
    counts: list[int] = []
    gc.disable()
    try:
        for _ in range(3):  # Another thread, as of a server for tests, may make garbage in one of them.
            gc.collect()
            with suppress(ProtocolError):
                parse_list_page(body, "", "")
            counts.append(gc.collect())
            if not counts[-1]:
                break
    finally:
        gc.enable()
    assert counts[-1] == 0, counts


def test_a_size_has_plain_digits() -> None:
    body = "<R><Contents><Key>k</Key><Size>\u0663</Size></Contents></R>".encode()
    with pytest.raises(ProtocolError, match="no valid size"):
        parse_list_page(body, "", "")


# --- pages as a parser reads them -------------------------------------------------------------------------------------

ROOT, PATH = "root/", "d/"
NAMES = st.text(alphabet="a/+%&<>\"' 2F\n\r\x01\ufffd\U0001f600;", max_size=6)
REFERENCES = ("&amp;", "&lt;", "&quot;", "&#34;", "&#x26;", "&#13;", "&amp;lt;", "&amp;#34;")


def object_element(key: str, etag: str, size: str, tail: str = "") -> str:
    """An object in a page; the texts are in XML already."""
    modified = "<LastModified>2026-11-29T12:00:01.000Z</LastModified>"
    return f"<Contents><Key>root/d/{key}</Key>{modified}<ETag>{etag}</ETag><Size>{size}</Size>{tail}</Contents>"


OBJECTS = st.builds(
    object_element,
    st.builds("".join, st.lists(NAMES.map(escape) | st.sampled_from(REFERENCES), min_size=1, max_size=3)),
    st.sampled_from(
        ["&quot;ab&quot;", '"ab"', "&#34;ab&#34;", "ab", "W/&quot;ab&quot;", "&quot;a&amp;b&quot;", '""', '"']
    ),
    st.sampled_from(["7", "007", "123456789012345678"]),
    st.sampled_from(
        [
            "",
            "<StorageClass>STANDARD</StorageClass>",
            "<Owner><ID>1</ID></Owner><StorageClass/>",
            "<Size>5</Size>",
            "<Key>root/d/other</Key>",
            "<StorageClass>a</Type>",
            "<!-- > -->",
        ]
    ),
)
BETWEEN = [
    "",
    "\n  ",
    "<!--",
    "-->",
    "<![CDATA[",
    "]]>",
    "<Nested>",
    "</Nested>",
    "<PlainContents/>",
    "<?x?>",
    "<a/>",
    "&x;",
]


def as_parsed(body: bytes, *, is_encoded: bool) -> list[tuple[str, int, str]] | None:
    """Paths, sizes and ETags by the parser of Python; ``None`` for a body that is no XML."""
    try:
        page = ET.XML(body, ET.XMLParser(encoding="utf-8"))
    except ET.ParseError:
        return None
    found = []
    for one in page.findall("Contents"):
        fields = {field.tag: field.text or "" for field in one}
        key = unquote_plus(fields["Key"]) if is_encoded else fields["Key"]
        found.append((key.removeprefix(ROOT), int(fields["Size"]), unquote_etag(fields["ETag"]) or ""))
    return sorted(found)


@given(
    st.lists(st.sampled_from(BETWEEN) | OBJECTS | OBJECTS, max_size=6),
    st.booleans(),
    st.sampled_from([b"", b"\xff", b"\xef\xbb\xbf"]),
)
@example(["<Nested>", object_element("k", '"ab"', "7"), "</Nested>"], False, b"")
@example(["<PlainContents/>", object_element("k", '"ab"', "7"), "<PlainContents/>"], False, b"")
@example([object_element("k", '"ab"', "7"), "<!--", object_element("l", '"ab"', "7"), "-->"], False, b"")
@example([object_element("k+l", '"ab"', "7")], True, b"")
@example([object_element("k\rl", '"ab"', "7")], False, b"")
@example([object_element("k\x01", '"ab"', "7")], False, b"")
def test_a_page_is_read_as_a_parser_reads_it(pieces: list[str], is_encoded: bool, lead: bytes) -> None:
    """Objects in the usual form are not read by a parser: what is around them must not make a difference."""
    encoding = "<EncodingType>url</EncodingType>" if is_encoded else ""
    body = lead + f"<ListBucketResult><KeyCount>1</KeyCount>{''.join(pieces)}{encoding}</ListBucketResult>".encode()
    expected = as_parsed(body, is_encoded=is_encoded)
    try:
        entries = parse_list_page(body, ROOT, PATH).entries
    except ProtocolError:
        assert expected is None
    else:
        assert sorted((one.path, one.size, one.etag or "") for one in entries) == expected
