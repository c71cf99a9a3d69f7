"""What counts as the same object at a destination: by ETags of s3, and by time where the caller says so."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from aioprefetch import Operator
from aioprefetch.transfer.object_copy import Comparison
from aioprefetch.transfer.sides import Side
from aioprefetch.values import Entry

THEN = datetime(2026, 1, 1, tzinfo=UTC)
ONE, OTHER, ZEROS = "1" * 32, "2" * 32, "0" * 32
OTHER_FORM = "not-a-digest"


@pytest.fixture
async def s3() -> AsyncIterator[Operator]:
    """An operator that sends nothing."""
    async with Operator.from_uri("s3://bucket", region="us-east-1", anonymous=True) as op:
        yield op


async def is_same(op: Operator, found: Entry, there: Entry, *, by_time: bool) -> bool:
    source, target = (Side(operator=op, path=path, label=path) for path in ("from/", "to/"))
    return await Comparison(source, target, op.runtime(), by_time=by_time).is_same(found, there)


@pytest.mark.parametrize(
    ("one", "other", "proven"),
    [
        (ONE, ONE, True),
        (f"{ONE}-2", f"{ONE}-2", True),
        (ONE, OTHER, False),
        # The same bytes in parts of another size have another ETag: only the time can tell.
        (ONE, f"{OTHER}-2", None),
        (f"{ONE}-2", OTHER, None),
        (f"{ONE}-2", f"{OTHER}-2", None),
        (f"{ONE}-2", f"{OTHER}-3", None),
        (ZEROS, ZEROS, None),
        (f"{ZEROS}-2", f"{ZEROS}-2", None),
        (OTHER_FORM, OTHER_FORM, None),
        (ONE, None, None),
        (None, None, None),
    ],
)
async def test_etags_prove_or_leave_it_to_the_time(
    s3: Operator, one: str | None, other: str | None, proven: bool | None
) -> None:
    found = Entry(path="k", size=10, etag=one, last_modified=THEN)
    there = Entry(path="k", size=10, etag=other, last_modified=THEN + timedelta(hours=1))
    assert await is_same(s3, found, there, by_time=False) is bool(proven)
    assert await is_same(s3, found, there, by_time=True) is (proven is not False)


@pytest.mark.parametrize("size", [None, 11])
async def test_another_size_is_another_object(s3: Operator, size: int | None) -> None:
    found = Entry(path="k", size=size, etag=ONE, last_modified=THEN)
    there = Entry(path="k", size=10, etag=ONE, last_modified=THEN + timedelta(hours=1))
    assert not await is_same(s3, found, there, by_time=True)


@pytest.mark.parametrize(
    ("modified", "after", "expected"),
    [
        (THEN, timedelta(), False),
        (THEN, timedelta(microseconds=999_999), False),
        (THEN, timedelta(seconds=1), True),
        (THEN, timedelta(seconds=-1), False),
        (THEN + timedelta(microseconds=5), timedelta(), False),
        (THEN + timedelta(microseconds=5), timedelta(microseconds=1), True),
    ],
)
async def test_a_source_may_have_changed_again_within_the_time_that_its_store_tells(
    s3: Operator, modified: datetime, after: timedelta, expected: bool
) -> None:
    """Most tell whole seconds: what was written in the same one may be older than what is there now."""
    found = Entry(path="k", size=10, last_modified=modified)
    there = Entry(path="k", size=10, last_modified=modified + after)
    assert await is_same(s3, found, there, by_time=True) is expected
