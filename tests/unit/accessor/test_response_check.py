"""Every wrong response that others let pass is refused before its first byte counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.accessor import check_range, check_reply, response_check
from aioprefetch.errors import ConditionNotMatch, Error, ProtocolError, RangeNotSatisfied
from aioprefetch.values import ReadHead, ReadRequest, UncheckedHead
from tests.profile import each_of


def ask(offset: int = 0, size: int | None = None, **fields: Any) -> ReadRequest:
    """A request for "k"."""
    return ReadRequest(path="k", offset=offset, size=size, **fields)


def part(content_range: str | None, length: int | None, **fields: Any) -> UncheckedHead:
    """A 206."""
    return UncheckedHead(status=206, content_range=content_range, content_length=length, **fields)


def whole(length: int | None, **fields: Any) -> UncheckedHead:
    """A 200."""
    return UncheckedHead(status=200, content_length=length, **fields)


RIGHT = {
    "the range": (ask(5, 10), part("bytes 5-14/100", 10), (5, 10, 100)),
    "no length (chunked)": (ask(5, 10), part("bytes 5-14/100", None), (5, 10, 100)),
    "cut at the end": (ask(95, 10), part("bytes 95-99/100", 5), (95, 5, 100)),
    "open end": (ask(95), part("bytes 95-99/100", 5), (95, 5, 100)),
    "suffix": (ask(suffix=8), part("bytes 92-99/100", 8), (92, 8, 100)),
    "suffix longer than the object": (ask(suffix=800), part("bytes 0-99/100", 100), (0, 100, 100)),
    "suffix longer than the object, whole": (ask(suffix=800), whole(100), (0, 100, 100)),
    "whole": (ask(), whole(100), (0, 100, 100)),
    "S23 whole where the range was all of it": (ask(0, 100), whole(100), (0, 100, 100)),
    "S23 whole where the range was more": (ask(0, 500), whole(100), (0, 100, 100)),
    "S22 total unknown, range exact": (ask(5, 10), part("bytes 5-14/*", 10), (5, 10, None)),
    "200 with a correct Content-Range (rclone)": (
        ask(5, 10),
        UncheckedHead(status=200, content_range="bytes 5-14/100", content_length=10),
        (5, 10, 100),
    ),
    "S25 an empty object, whole": (ask(), whole(0), (0, 0, 0)),
    "S25 an empty object, any range": (ask(5, 10), whole(0), (0, 0, 0)),
    "S25 an empty object, suffix": (ask(suffix=3), whole(0), (0, 0, 0)),
}

WRONG = {
    "S15 no length at all": (ask(), whole(None)),
    "S15 no length for a range": (ask(5, 10), whole(None)),
    "S16 a consistent shorter range": (ask(5, 10), part("bytes 5-9/100", 5)),
    "S16 a shorter range with unknown total": (ask(5, 10), part("bytes 5-9/*", 5)),
    "S16 length contradicts range": (ask(5, 10), part("bytes 5-14/100", 9)),
    "S17 no body": (ask(5, 10), part("bytes 5-14/100", 0)),
    "S17 no body and no range": (ask(5, 10), part(None, 0)),
    "S19 shifted by one": (ask(5, 10), part("bytes 6-15/100", 10)),
    "S19 another range": (ask(5, 10), part("bytes 0-9/100", 10)),
    "S20 no Content-Range": (ask(5, 10), part(None, 10)),
    "S20 a senseless Content-Range": (ask(5, 10), part("bytes five to 14", 10)),
    "S20 an unsatisfied Content-Range": (ask(5, 10), part("bytes */100", 10)),
    "S20 an inverted Content-Range": (ask(5, 10), part("bytes 14-5/100", 10)),
    "S20 Content-Range beyond its own total": (ask(5, 10), part("bytes 5-14/12", 10)),
    "S22 suffix with unknown total": (ask(suffix=10), part("bytes 0-9/*", 10)),
    "S22 open end with unknown total": (ask(5), part("bytes 5-9/*", 5)),
    "S23 the whole object for a range": (ask(5, 10), whole(100)),
    "S23 the whole object for its beginning": (ask(0, 10), whole(100)),
    "S23 the whole object for its tail": (ask(suffix=10), whole(100)),
    "S23 the whole object for a range beyond its end": (ask(500, 10), whole(100)),
    "longer than asked for": (ask(5, 10), part("bytes 5-24/100", 20)),
    "suffix answered with the beginning": (ask(suffix=8), part("bytes 0-7/100", 8)),
    "the tail is missing": (ask(5), part("bytes 5-98/100", 94)),
    "another success": (ask(5, 10), UncheckedHead(status=203, content_range="bytes 5-14/100", content_length=10)),
    "no content": (ask(), UncheckedHead(status=204, content_length=0, content_range="bytes 0-0/1")),
    "200 with a wrong Content-Range": (
        ask(5, 10),
        UncheckedHead(status=200, content_range="bytes 0-9/100", content_length=10),
    ),
    "200 with a senseless Content-Range": (
        ask(5, 10),
        UncheckedHead(status=200, content_range="nonsense", content_length=10),
    ),
}


@each_of("name", RIGHT)
def test_a_right_response_is_accepted(name: str) -> None:
    request, response, (start, size, total) = RIGHT[name]
    head = check_reply(request, response)
    assert (head.start, head.size, head.total) == (start, size, total)
    assert head.end == start + size


@each_of("name", WRONG)
def test_a_wrong_response_is_refused(name: str) -> None:
    request, response = WRONG[name]
    with pytest.raises(ProtocolError) as caught:
        check_reply(request, response)
    assert (caught.value.operation, caught.value.path) == ("read", "k")
    assert caught.value.context["range"] == request.describe()
    assert caught.value.is_temporary


@each_of("etag", ["old", "W/new", None, "NEW"])
def test_another_version_is_refused(etag: str | None) -> None:
    """S31, S32: servers that ignore If-Match, or send no ETag, are found out by the comparison."""
    with pytest.raises(ConditionNotMatch) as caught:
        check_reply(ask(5, 10, if_match="new"), part("bytes 5-14/100", 10, etag=etag))
    assert caught.value.context["etag"] == etag
    assert caught.value.context["if_match"] == "new"


@each_of("if_match", [None, "*", "new"])
def test_the_same_version_is_accepted(if_match: str | None) -> None:
    response = part("bytes 5-14/100", 10, etag="new", version="v7", content_type="text/plain")
    head = check_reply(ask(5, 10, if_match=if_match), response)
    assert (head.etag, head.version, head.content_type) == ("new", "v7", "text/plain")


@given(st.integers(0, 30), st.none() | st.integers(0, 30), st.none() | st.integers(1, 30), st.integers(0, 30))
def test_a_range_that_the_store_cuts_is_a_slice(offset: int, size: int | None, suffix: int | None, total: int) -> None:
    """``check_range`` gives the bounds of the slice, and refuses what has no byte in an object that has some."""
    request = ask(0 if suffix else offset, None if suffix else size, suffix=suffix)
    data = list(range(total))
    end = total if size is None else offset + size
    if total and not suffix and offset >= total:
        with pytest.raises(RangeNotSatisfied) as caught:
            check_range(request, total=total)
        assert (caught.value.total, caught.value.operation, caught.value.path) == (total, "read", "k")
        return
    head = check_range(request, total=total, etag="e", content_type="text/plain")
    assert data[head.start : head.end] == (data[-suffix:] if suffix else data[offset:end])
    assert (head.total, head.etag, head.content_type) == (total, "e", "text/plain")


def test_conditions_on_a_range_that_the_store_cuts() -> None:
    """Conditions come before the range: an object that has changed is not said to be too short."""
    for if_match in (None, "*", "new"):
        assert check_range(ask(if_match=if_match), total=10, etag="new").etag == "new"
    for refused in (ask(50, if_match="old"), ask(50, if_none_match="new"), ask(50, if_none_match="*")):
        with pytest.raises(ConditionNotMatch) as caught:
            check_range(refused, total=10, etag="new")
        assert caught.value.context["etag"] == "new"
    assert check_range(ask(if_none_match="old"), total=10, etag="new").size == 10
    assert check_range(ask(version="v1"), total=10, version="v1").version == "v1"
    assert check_range(ask(version="v1"), total=10).version is None
    with pytest.raises(ProtocolError, match="version 'v2'"):
        check_range(ask(version="v1"), total=10, version="v2")


small = st.integers(0, 30)


@given(small, st.none() | st.integers(1, 30), st.none() | st.integers(1, 30), st.integers(1, 30), small, small)
def test_no_response_with_other_bytes_is_accepted(
    offset: int, size: int | None, suffix: int | None, total: int, first: int, length: int
) -> None:
    """Whatever 206 a server invents: what is taken is what slicing the object would give."""
    request = ask(0 if suffix else offset, None if suffix else size, suffix=suffix)
    data = list(range(total))
    end = total if size is None else offset + size
    due = data[-suffix:] if suffix else data[offset:end]
    response = part(f"bytes {first}-{first + length - 1}/{total}", length)
    try:
        head: ReadHead = check_reply(request, response)
    except Error:
        assert not (due and (first, length) == (due[0], len(due)))
        return
    assert data[head.start : head.end] == due


TOTALS = st.integers(0, 40).map(str) | st.sampled_from(
    ["*", "", "+30", "3_0", "\u0663\u0660", " 30", "9" * 19, "9" * 20]
)


@given(
    small, st.integers(0, 12), small, small, TOTALS, st.none() | small, st.sampled_from([200, 206, 203]), st.booleans()
)
def test_the_fast_path_accepts_only_what_the_full_check_accepts(
    offset: int, size: int, first: int, last: int, total: str, length: int | None, status: int, exact: bool
) -> None:
    """Answers of exactly the range that was asked for are checked at once; nothing else about them may differ."""
    if exact:
        first, last, length = offset, offset + size - 1, length and size
    request = ask(offset, size)
    response = UncheckedHead(status=status, content_range=f"bytes {first}-{last}/{total}", content_length=length)
    try:
        expected = response_check.fully_checked_range(request, response)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            check_reply(request, response)
    else:
        head = check_reply(request, response)
        assert (head.start, head.size, head.total) == expected


numbers = st.integers(0, 12)


@given(
    offset=numbers,
    size=st.none() | st.integers(1, 12),
    suffix=st.none() | st.integers(1, 12),
    first_bytes=st.integers(1, 12),
    start=numbers,
    last=numbers,
    total=st.none() | numbers,
    length=st.none() | numbers,
    status=st.sampled_from([200, 206, 204]),
)
def test_a_first_part_is_checked_as_the_request_for_it(
    offset: int,
    size: int | None,
    suffix: int | None,
    first_bytes: int,
    start: int,
    last: int,
    total: int | None,
    length: int | None,
    status: int,
) -> None:
    """Where the end of the object is missing it says so; without a range the response holds everything."""
    if suffix is not None:
        offset, size = 0, None
    request = ask(offset, size, suffix=suffix, first_bytes=first_bytes)
    response = UncheckedHead(
        status=status, content_range=f"bytes {start}-{last}/{'*' if total is None else total}", content_length=length
    )

    def outcome(of: ReadRequest) -> object:
        try:
            return check_reply(of, response)
        except Error as error:
            return type(error)

    found = outcome(request)
    if total is None and size is None:
        assert found is ProtocolError
    else:
        assert found == outcome(request.first_part())
    response.content_range = None
    assert outcome(request) == outcome(ask(offset, size, suffix=suffix))
