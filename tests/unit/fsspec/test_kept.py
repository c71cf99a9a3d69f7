"""What a file system keeps: how long, how much, what forgetting costs, and that no verb decides by it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem, S3FileSystem
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.conformance.suite import checks
from tests.stores.planted_keys import PlantedBucket, PlantedMemory

Make = Callable[..., AioPrefetchFileSystem]


@pytest.fixture
def planted(random_name: Callable[[], str]) -> PlantedMemory:
    return PlantedMemory(random_name())


@pytest.fixture
def make(planted: PlantedMemory) -> Iterator[Make]:
    """Makes file systems over the store, which another client changes."""
    made: list[AioPrefetchFileSystem] = []

    def make(**options: Any) -> AioPrefetchFileSystem:
        made.append(AioPrefetchFileSystem(planted.operator, skip_instance_cache=True, **options))
        return made[-1]

    yield make
    for fs in made:
        fs.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds by which the clock of what is kept is ahead."""
    ahead = [0.0]
    now = iter(range(1, 1_000_000))
    monkeypatch.setattr("aioprefetch.fsspec.kept.monotonic", lambda: 100 + ahead[0] + next(now) * 1e-6)
    monkeypatch.setattr("aioprefetch.fsspec.tree.monotonic", lambda: 100 + ahead[0] + next(now) * 1e-6)
    return ahead


def remove(planted: PlantedMemory, key: str) -> None:
    """As another client does."""
    planted.operator.service.store.remove(key)  # type: ignore[attr-defined]


def steps_of(call: Callable[[], object]) -> int:
    """The calls of functions, those in C too, that a call takes in this thread."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event.endswith("call")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


class TestHowLong:
    def test_an_expired_listing_goes_without_being_asked_for(
        self, make: Make, planted: PlantedMemory, clock: list[float]
    ) -> None:
        planted.plant({f"day{number}/x": b"" for number in range(20)})
        fs = make(listings_expiry_time=30)
        for number in range(20):
            fs.ls(f"day{number}")
        assert len(fs.dircache) == 20
        clock[0] = 29
        remove(planted, "day3/x")
        assert fs.exists("day3/x")
        clock[0] = 31
        assert (len(fs.dircache), list(fs.dircache)) == (0, [])
        assert not fs.exists("day3/x")

    def test_for_ever(self, make: Make, planted: PlantedMemory, clock: list[float]) -> None:
        planted.plant({"d/x": b""})
        fs = make(listings_expiry_time=None)
        fs.ls("d")
        clock[0] = 1e9
        remove(planted, "d/x")
        assert fs.ls("d", detail=False) == ["d/x"]

    def test_the_entry_of_an_object_for_five_seconds(
        self, make: Make, planted: PlantedMemory, clock: list[float]
    ) -> None:
        planted.plant({"d/x": b"1"})
        fs = make()
        assert fs.info("d/x")["size"] == 1
        planted.plant({"d/x": b"22"})
        clock[0] = 4.9
        assert (fs.info("d/x")["size"], fs.isfile("d/x")) == (1, True)
        assert fs.info("d/x", refresh=True)["size"] == 2
        planted.plant({"d/x": b"333"})
        clock[0] = 10
        assert fs.info("d/x")["size"] == 3

    def test_what_is_missing_is_asked_for_each_time(self, make: Make, planted: PlantedMemory) -> None:
        fs = make()
        assert not fs.exists("d/x")
        planted.plant({"d/x": b"1"})
        assert fs.exists("d/x")

    def test_a_digest_is_of_now(self, make: Make, planted: PlantedMemory) -> None:
        """Caches of files compare it before they give out what they have."""
        planted.plant({"d/x": b"1"})
        fs = make()
        before = fs.ukey("d/x"), fs.checksum("d/x")
        fs.info("d/x")
        planted.plant({"d/x": b"22"})
        after = fs.ukey("d/x"), fs.checksum("d/x")
        assert before[0] != after[0]
        assert before[1] != after[1]

    def test_a_change_by_another_operator_of_the_process_ends_the_entries_of_objects(
        self, make: Make, planted: PlantedMemory
    ) -> None:
        fs = make()
        with ap.sync.BlockingOperator(ap.Operator.from_uri(planted.url)) as other:
            for change in (
                lambda: other.write("d/x", b"22"),
                lambda: other.copy("d/y", "d/x"),
                lambda: other.move("d/y", "d/x"),
                lambda: other.delete("d/x"),
            ):
                planted.plant({"d/x": b"1", "d/y": b"333"})
                assert fs.info("d/x", refresh=True)["size"] == 1
                change()
                assert not fs.exists("d/x") or fs.info("d/x")["size"] > 1

    def test_a_new_listing_replaces_the_entries_of_objects(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({"d/x": b"1"})
        fs = make()
        fs.info("d/x")
        planted.plant({"d/x": b"22"})
        assert fs.ls("d")[0]["size"] == fs.info("d/x")["size"] == 2

    def test_nothing_where_that_is_switched_off(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({"d/x": b"1"})
        fs = make(use_listings_cache=False)
        assert [fs.info("d/x")["size"], len(fs.ls("d"))] == [1, 1]
        planted.plant({"d/x": b"22", "d/y": b""})
        assert [fs.info("d/x")["size"], len(fs.ls("d"))] == [2, 2]


class TestHowMuch:
    def test_the_oldest_listings_go(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({f"{directory}/{number}": b"" for directory in "abcd" for number in range(9)})
        fs = make(listings_max_entries=30)
        for directory in "abcd":
            fs.ls(directory)
        assert list(fs.dircache) == ["b", "c", "d"]
        planted.plant({f"long/{number}": b"" for number in range(31)})
        assert len(fs.ls("long")) == 31
        assert "long" not in fs.dircache

    def test_listings_of_one_find_that_are_too_many_push_out_none(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({f"d/{number}/x": b"" for number in range(20)} | {"e/x": b""})
        fs = make(listings_max_entries=30)
        fs.ls("e")
        assert len(fs.find("d")) == 20
        assert list(fs.dircache) == ["e"]

    def test_no_more_directories_than_max_paths(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({f"{directory}/x": b"" for directory in "abcd"})
        fs = make(max_paths=2)
        for directory in "abcd":
            fs.ls(directory)
        assert list(fs.dircache) == ["c", "d"]

    def test_many_changes_take_no_more_room_than_listings(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({"d/x": b"", "e/x": b""})
        fs = make(listings_max_entries=30, listings_expiry_time=None)
        for left in (["d"], []):
            for number in range(40):
                fs.invalidate_cache(f"other/{number}")
            if left:  # The changes before it do not count.
                fs.ls("d")
            assert list(fs.dircache) == left

    @pytest.mark.parametrize("value", [0, -1, "many"])
    def test_a_number_that_is_none(self, make: Make, value: object) -> None:
        with pytest.raises((ValueError, TypeError), match="listings_max_entries"):
            make(listings_max_entries=value)


class TestForgetting:
    def test_costs_the_same_beside_any_number_of_listings(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({f"t/{number}/s/x": b"" for number in range(1_000)})
        fs = make()
        fs.ls("t")
        alone = steps_of(lambda: fs.invalidate_cache("w/a/b"))
        fs.find("t")
        assert len(fs.dircache) > 2_000
        assert steps_of(lambda: fs.invalidate_cache("w/a/b")) <= 1.3 * alone
        assert len(fs.dircache) > 2_000

    def test_what_is_below_goes_and_what_is_beside_stays(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant(dict.fromkeys(("a/b/c/x", "a/b2/x", "a//b/x", "a2/x"), b""))
        fs = make()
        fs.find("a")
        fs.ls("a2")
        fs.invalidate_cache("a/b")
        assert {"a/b2", "a//b", "a2"} <= {name for name in fs.dircache if name in fs.dircache}
        assert not {"a", "a/b", "a/b/c"} & {name for name in fs.dircache if name in fs.dircache}
        fs.ls("a/b/c")
        assert "a/b/c" in fs.dircache

    @pytest.mark.parametrize("root", [None, "", "/"])
    def test_the_root_is_everything(self, make: Make, planted: PlantedMemory, root: str | None) -> None:
        planted.plant({"a/b/x": b"1", "y": b"1"})
        fs = make(listings_expiry_time=None)
        fs.find("")
        fs.info("y")
        fs.invalidate_cache(root)
        planted.plant({"a/b/x": b"22", "y": b"22"})
        assert len(fs.dircache) == 0
        assert [fs.info(name)["size"] for name in ("a/b/x", "y")] == [2, 2]

    def test_as_a_mapping(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({"a/x": b""})
        fs = make()
        fs.ls("a")
        assert [info["name"] for info in fs.dircache["a"]] == ["a/x"]
        fs.dircache.clear()
        assert "a" not in fs.dircache


class TestNoVerbDecidesByIt:
    """Another client has changed what was listed."""

    @checks("reliability:W47")
    def test_creation(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({"locks/l": b"1"})
        fs = make()
        creations: tuple[Callable[[], object], ...] = (
            lambda: fs.pipe_file("locks/l", b"2", mode="create"),
            lambda: fs.open("locks/l", "xb").close(),
            lambda: fs.touch("locks/l", truncate=False),
        )
        for create in creations:
            planted.plant({"locks/l": b"1"})
            fs.ls("locks", refresh=True)
            fs.info("locks/l")
            remove(planted, "locks/l")
            create()
            assert "locks/l" in planted.objects()

    @checks("reliability:W47")
    def test_what_is_not_listed_yet_is_not_written_over(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({"d/other": b""})
        fs = make()
        fs.ls("d")
        planted.plant({"d/x": b"kept"})
        with pytest.raises(ap.Unsupported):
            fs.touch("d/x", truncate=False)
        assert planted.objects()["d/x"] == b"kept"

    @checks("reliability:W47")
    def test_removal_by_a_pattern_and_by_levels(self, make: Make, planted: PlantedMemory) -> None:
        planted.plant({"d/x1": b"", "d/y": b""})
        fs = make()
        fs.ls("d")
        planted.plant({"d/x2": b""})
        fs.rm("d/x*")
        assert sorted(planted.objects()) == ["d/y"]
        fs.ls("d")
        planted.plant({"d/z": b""})
        fs.rm("d", recursive=True, maxdepth=1)
        assert planted.objects() == {}
        planted.plant({"e/x": b""})
        fs.ls("e")
        remove(planted, "e/x")
        with pytest.raises(FileNotFoundError):
            fs.rm("e", recursive=True, maxdepth=1)

    @checks("reliability:W47")
    def test_copies_and_transfers_by_a_pattern(self, make: Make, planted: PlantedMemory, tmp_path: Path) -> None:
        planted.plant({"d/x1": b"1", "d/sub/y": b""})
        fs = make()
        fs.ls("d")
        planted.plant({"d/x2": b"2"})
        fs.cp("d/x*", "copied/")
        assert sorted(planted.objects()) == ["copied/x1", "copied/x2", "d/sub/y", "d/x1", "d/x2"]
        fs.ls("d")
        planted.plant({"d/x3": b"3"})
        fs.get("d/x*", f"{tmp_path}/")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x1", "x2", "x3"]
        fs.ls("d")
        remove(planted, "d/sub/y")
        planted.plant({"d/sub": b"an object now"})
        fs.cp("d/sub", "copied/sub")
        assert planted.objects()["copied/sub"] == b"an object now"

    def test_a_verb_believes_what_it_has_listed_itself(self, random_name: Callable[[], str]) -> None:
        """A pattern is one listing for any number of names, and also beside an old one."""
        operator = ap.Operator.bare(ap.services.Memory(random_name())).layer(ap.testing.FaultLayer())
        fs = AioPrefetchFileSystem(operator)
        fs.pipe({f"d/x{number}": b"" for number in range(20)})

        async def listings() -> int:
            accessor: Any = operator.accessor()
            return sum(request.operation == "list" for request in accessor.requests)

        fs.ls("d")
        before = ap.sync.run(listings())
        fs.cp("d/x*", "copied/")
        assert ap.sync.run(listings()) - before <= 2
        fs.close()

    @checks("reliability:W47")
    def test_buckets(self, s3_server: CountingS3Server, random_name: Callable[[], str]) -> None:
        planted = PlantedBucket(s3_server, random_name())
        fs = S3FileSystem(**planted.options, skip_instance_cache=True)
        assert planted.name in fs.ls("", detail=False)
        fs.mkdir(f"{planted.name}-made")
        assert f"{planted.name}-made" in fs.ls("", detail=False)
        other = S3FileSystem(**planted.options, skip_instance_cache=True)
        other.rmdir(f"{planted.name}-made")
        fs.makedirs(f"{planted.name}-made", exist_ok=True)
        assert f"{planted.name}-made" in other.ls("", detail=False, refresh=True)
        fs.ls("", refresh=True)
        other.rmdir(f"{planted.name}-made")
        fs.mkdir(f"{planted.name}-made")
        assert f"{planted.name}-made" in other.ls("", detail=False, refresh=True)
        other.rmdir(f"{planted.name}-made")
        for each in (fs, other):
            each.close()
