"""Conformance of conditional and versioned reads."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import ConditionNotMatch, InvalidArgument, NotFound, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import ConformanceSuite, checks, needs
from aioprefetch.testing.oracle import assert_same_bytes, content, raises
from aioprefetch.values import Entry, ListRequest, ReadRequest


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
            with raises(ConditionNotMatch) as caught:
                await operator.read("k", if_match="another", **options)
            assert (caught.value.operation, caught.value.path) == ("read", "k")

    @checks("opendal:R13")
    @needs("read_if_match", "replaces_at_once")
    async def test_condition_if_match_after_a_change(self, operator: Operator) -> None:
        """The ETag of the replaced object no longer matches."""
        await self.put_directly("k", content(100))
        etag = await self._etag(operator, "k")
        await self.put_directly("k", content(100, version=1))
        with raises(ConditionNotMatch):
            await operator.read("k", if_match=etag)

    @checks("opendal:R14")
    @needs("read_if_none_match")
    async def test_condition_if_none_match(self, operator: Operator) -> None:
        """An unchanged object raises `ConditionNotMatch`, another ETag returns the data."""
        await self.put_directly("k", content(100))
        accessor = operator.accessor()
        etag = await self._etag(operator, "k")
        with raises(ConditionNotMatch):
            await accessor.read(ReadRequest(path="k", if_none_match=etag), CollectSink())
        sink = CollectSink()
        await accessor.read(ReadRequest(path="k", if_none_match="another"), sink)
        assert_same_bytes(sink.to_bytes(), content(100))

    @checks("opendal:R13")
    @needs("read_if_match")
    async def test_condition_a_reader_meets_a_wrong_etag_at_its_first_read(self, operator: Operator) -> None:
        """Opening does no I/O and cannot fail; the first read fails, with the expected ETag in its error."""
        async with self.reading(operator, content(100), etag="another") as reader:
            with raises(OSError) as caught:
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
        with raises(NotFound):
            await operator.read("k", version=missing)
        assert (await operator.stat("k", version=first)).version == first
        assert (await operator.stat("k", version=second)).size == 100
        with raises(NotFound):
            await operator.stat("k", version=missing)

    @checks("opendal:R15", "opendal:R16", "opendal:R17")
    @needs("read_if_modified_since", "read_if_unmodified_since", "stat")
    async def test_condition_times(self, operator: Operator) -> None:
        """A second before the last change, at it, and a second after it: of a whole object, a range, and a long one."""
        await self.put_directly("k", content(100))
        modified = (await operator.stat("k")).last_modified
        assert modified is not None
        before, after = modified - timedelta(seconds=1), modified + timedelta(seconds=1)
        ranges: list[dict[str, Any]] = [{}, {"offset": 5, "size": 5}, {"suffix": 10}]
        for options in ranges:
            expected = await operator.read("k", **options)
            fresh: list[dict[str, Any]] = [
                *({"if_modified_since": before}, {"if_unmodified_since": modified}, {"if_unmodified_since": after}),
                {"if_modified_since": before, "if_unmodified_since": after},
            ]
            for times in fresh:
                assert await operator.read("k", **options, **times) == expected
            stale: list[dict[str, Any]] = [
                *({"if_modified_since": modified}, {"if_modified_since": after}, {"if_unmodified_since": before}),
                {"if_modified_since": after, "if_unmodified_since": after},
            ]
            for times in stale:
                with raises(ConditionNotMatch) as caught:
                    await operator.view("k", **options, **times)
                assert (caught.value.operation, caught.value.path) == ("read", "k")
        with raises(NotFound):
            await operator.read("missing", if_modified_since=before)

    @checks("opendal:R17")
    @needs("read", without=("read_if_modified_since",))
    async def test_condition_times_are_refused_where_they_would_be_ignored(self, operator: Operator) -> None:
        """Before any request."""
        now = datetime.now(UTC)
        with self.counting(operator) as spent:
            for name in ("if_modified_since", "if_unmodified_since"):
                with raises(Unsupported, match=name):
                    await operator.read("k", **{name: now})  # type: ignore[arg-type]
        assert spent.none

    @checks("opendal:S8")
    @needs("stat", "read")
    async def test_condition_of_a_stat(self, operator: Operator) -> None:
        """Each condition, true and false, by the metadata of a stat; refused where a store has no such metadata."""
        await self.put_directly("k", content(100))
        metadata = await operator.stat("k")
        etag, modified = metadata.etag, metadata.last_modified
        true: list[dict[str, Any]] = [{"if_match": "*"}, {"if_none_match": "another"}]
        false: list[dict[str, Any]] = [{"if_match": "another"}, {"if_none_match": "*"}]
        unknown: list[dict[str, Any]] = []
        if etag is not None:
            true.append({"if_match": etag})
            false.append({"if_none_match": etag})
        if modified is not None:
            before = modified - timedelta(seconds=1)
            true += [{"if_modified_since": before}, {"if_unmodified_since": modified}]
            false += [{"if_modified_since": modified}, {"if_match": "*", "if_unmodified_since": before}]
        else:
            now = datetime.now(UTC)
            unknown = [{"if_modified_since": now}, {"if_unmodified_since": now}]
        for condition in true:
            assert await operator.stat("k", **condition) == metadata
        for conditions, expected in ((false, ConditionNotMatch), (unknown, Unsupported)):
            for condition in conditions:
                with raises(expected) as caught:
                    await operator.stat("k", **condition)
                assert (caught.value.operation, caught.value.path) == ("stat", "k")


class VersionChecks(ConformanceSuite):
    """Tests of `list(versions=True)` and of `delete` by version."""

    async def _versions(self, operator: Operator, prefix: str = "", **options: Any) -> list[Entry]:
        return [entry async for entry in operator.list(prefix, versions=True, **options)]

    @checks("opendal:L11")
    @needs("list_versions", "read_version", "delete", "keeps_versions")
    async def test_version_listing(self, operator: Operator) -> None:
        """Each version and each delete marker, the newest first, each readable by what the listing says of it."""
        for number in range(3):
            await self.put_directly("d/k", content(10 + number, version=number))
        await self.put_directly("d/other", content(5))
        await operator.delete("d/k")
        entries = await self._versions(operator, "d/")
        assert [(entry.path, entry.is_delete_marker, entry.is_latest) for entry in entries] == [
            *(("d/k", True, True), ("d/k", False, False), ("d/k", False, False), ("d/k", False, False)),
            ("d/other", False, True),
        ]
        assert len({entry.version for entry in entries}) == 5
        assert None not in {entry.version for entry in entries}
        assert sorted(entry.size or 0 for entry in entries[1:4]) == [10, 11, 12]
        for entry in entries[1:]:
            data = await operator.read(entry.path, version=entry.version)
            assert len(data) == entry.size
            assert (await operator.stat(entry.path, version=entry.version)).etag == entry.etag
        assert [entry.path async for entry in operator.list("d/")] == ["d/other"]

    @checks("opendal:L11")
    @needs("list_versions", "keeps_versions")
    async def test_version_listing_by_pages_and_directories(self, operator: Operator) -> None:
        """A path may go on from one page to the next; directories fold; `start_after` leaves out a path whole."""
        for path in ("a", "b", "d/x", "d/y"):
            for number in range(4):
                await self.put_directly(path, content(10, version=number))
        entries = await self._versions(operator)
        assert [entry.path for entry in entries] == [*["a"] * 4, *["b"] * 4, "d/"]
        assert [entry.path for entry in await self._versions(operator, start_after="a", recursive=True)] == [
            path for path in ("b", "d/x", "d/y") for _ in range(4)
        ]
        paged: list[Entry] = []
        request = ListRequest(path="", recursive=True, versions=True, page_entries_max=3)
        for _ in range(6):
            page = await operator.accessor().list_page(request)
            assert len(page.entries) <= 3
            paged += page.entries
            request = replace(request, page_token=page.next_token)
        assert request.page_token is None
        assert [(entry.path, entry.version) for entry in paged] == [
            (entry.path, entry.version) for entry in await self._versions(operator, recursive=True)
        ]

    @checks("opendal:D6")
    @needs("list_versions", "delete_version", "read_version", "keeps_versions")
    async def test_version_deletion(self, operator: Operator) -> None:
        """One version is deleted permanently and the others stay; without its delete marker the object is back."""
        for number in range(3):
            await self.put_directly("k", content(10, version=number))
        newest, middle, _ = await self._versions(operator)
        await operator.delete("k", version=middle.version)
        with raises(NotFound):
            await operator.read("k", version=middle.version)
        await operator.delete("k", version=middle.version)
        assert_same_bytes(await operator.read("k"), content(10, version=2))
        await operator.delete("k", version=newest.version)
        assert_same_bytes(await operator.read("k"), content(10, version=0))
        await operator.delete("k")
        assert not await operator.exists("k")
        (marker,) = [entry for entry in await self._versions(operator) if entry.is_delete_marker]
        await operator.delete("k", version=marker.version)
        assert_same_bytes(await operator.read("k"), content(10, version=0))

    @checks("opendal:L11")
    @needs("list", without=("list_versions",))
    async def test_list_of_versions_is_refused_where_there_are_none(self, operator: Operator) -> None:
        """The objects alone would look like all versions."""
        with raises(Unsupported):
            await self._versions(operator)

    @checks("opendal:D6")
    @needs("delete", without=("delete_version",))
    async def test_delete_of_a_version_is_refused_where_there_are_none(self, operator: Operator) -> None:
        """The object itself would be deleted."""
        await self.put_directly("k", content(10))
        with raises(Unsupported):
            await operator.delete("k", version="1")
        assert await self.get_directly("k") == content(10)

    @checks("opendal:D6")
    @needs("delete")
    async def test_delete_of_a_version_is_of_one_path(self, operator: Operator) -> None:
        """A version belongs to one object."""
        with raises(InvalidArgument):
            await operator.delete(["a", "b"], version="1")
