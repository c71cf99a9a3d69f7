"""Conformance of conditional and versioned reads."""

from typing import Any

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import ConditionNotMatch, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.conformance.suite import ConformanceSuite, needs
from aioprefetch.testing.oracle import assert_same_bytes, content
from aioprefetch.values import ReadRequest


class ConditionChecks(ConformanceSuite):
    """Tests of `if_match`, `if_none_match` and `version`."""

    async def _etag(self, operator: Operator, path: str) -> str:
        sink = CollectSink()
        response = await operator.accessor().read(ReadRequest(path=path), sink)
        assert response.head.etag, "the store names no ETag"
        return response.head.etag

    @checks("opendal:R13")
    @needs("read_if_match")
    async def test_condition_if_match(self, operator: Operator) -> None:
        """The right ETag returns the data, a wrong one raises `ConditionNotMatch`, for ranges too."""
        await self.put_directly("k", content(100))
        etag = await self._etag(operator, "k")
        assert_same_bytes(await operator.read("k", if_match=etag), content(100))
        assert_same_bytes(await operator.read("k", offset=5, size=5, if_match=etag), content(100)[5:10])
        parts: tuple[dict[str, Any], ...] = ({}, {"offset": 5, "size": 5})
        for options in parts:
            with pytest.raises(ConditionNotMatch) as caught:
                await operator.read("k", if_match="another", **options)
            assert (caught.value.operation, caught.value.path) == ("read", "k")

    @checks("opendal:R13")
    @needs("read_if_match", "replaces_at_once")
    async def test_condition_if_match_after_a_change(self, operator: Operator) -> None:
        """The ETag of the replaced object no longer matches."""
        await self.put_directly("k", content(100))
        etag = await self._etag(operator, "k")
        await self.put_directly("k", content(100, version=1))
        with pytest.raises(ConditionNotMatch):
            await operator.read("k", if_match=etag)

    @checks("opendal:R14")
    @needs("read_if_none_match")
    async def test_condition_if_none_match(self, operator: Operator) -> None:
        """An unchanged object raises `ConditionNotMatch`, another ETag returns the data."""
        await self.put_directly("k", content(100))
        accessor = operator.accessor()
        etag = await self._etag(operator, "k")
        with pytest.raises(ConditionNotMatch):
            await accessor.read(ReadRequest(path="k", if_none_match=etag), CollectSink())
        sink = CollectSink()
        await accessor.read(ReadRequest(path="k", if_none_match="another"), sink)
        assert_same_bytes(sink.to_bytes(), content(100))

    @checks("opendal:R13")
    @needs("read_if_match")
    async def test_condition_a_reader_meets_a_wrong_etag_at_its_first_read(self, operator: Operator) -> None:
        """Opening does no I/O and cannot fail; the first read fails, with the expected ETag in its error."""
        await self.put_directly("k", content(100))
        async with operator.reader("k", etag="another") as reader:
            with pytest.raises(OSError) as caught:  # noqa: PT011  ObjectChanged or ConditionNotMatch
                await reader.read_at(0, 10)
            assert caught.value.kind in ("ObjectChanged", "ConditionNotMatch")  # type: ignore[attr-defined]
            assert "another" in str(caught.value)

    @checks("opendal:R18")
    @needs("read_version", "stat", "keeps_versions")
    async def test_condition_version(self, operator: Operator) -> None:
        """An older version can be read by its id; an unknown version is `NotFound`."""
        await self.put_directly("k", content(100))
        first = (await operator.stat("k")).version
        await self.put_directly("k", content(100, version=1))
        second = (await operator.stat("k")).version
        assert first
        assert second
        assert first != second
        assert_same_bytes(await operator.read("k", version=first), content(100))
        assert_same_bytes(await operator.read("k", offset=10, size=10, version=first), content(100)[10:20])
        assert_same_bytes(await operator.read("k", version=second), content(100, version=1))
        async with operator.reader("k", version=first) as reader:
            assert_same_bytes(await reader.read_at(50, 20), content(100)[50:70])
        missing = first[:-1] + ("a" if first[-1] != "a" else "b")
        with pytest.raises(NotFound):
            await operator.read("k", version=missing)
