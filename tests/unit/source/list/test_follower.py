"""Following the lister of another source: back-filled once, then record by record, whatever is removed meanwhile."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.errors import InvalidArgument, StateConflict
from aioprefetch.source.list.follower import KNOWN_FILES, Follower
from aioprefetch.source.options import ListOptions
from aioprefetch.source.values import FetchItem, Follow, Record, SourceFile, TailAndSweep
from aioprefetch.testing import run_virtual
from aioprefetch.testing.conformance.suite import checks
from tests.stores.dict_index import Consumer, DictIndex
from tests.stores.simulated_bucket import hurried
from tests.unit.source.list.followed_state import FollowedState

EAGER = ListOptions(interval_seconds=0.0)


def follower(state: FollowedState, page_files: int = KNOWN_FILES) -> Consumer:
    """A consumer that knows nothing yet."""
    known = DictIndex()
    return Consumer(
        Follower(state.as_state(), EAGER, known, page_files=page_files), known, cursor=Follow(state=state.uuid)
    )


def kinds_of(changes: list[object]) -> list[tuple[str, str]]:
    """Kinds and keys."""
    return [(change.kind, change.file.key) for change in changes]  # type: ignore[attr-defined]


async def until_idle(one: Consumer, room: int = 1 << 60) -> list[tuple[str, str]]:
    """All changes until a trigger has none."""
    return kinds_of(list(await one.until_idle(room)))


@checks("source:L1")
async def test_two_consumers_share_one_lister() -> None:
    """A follower costs no listing request, and gets what the other one got."""
    state = FollowedState()
    state.append([FetchItem(state.file(key)) for key in "cab"])
    one, two = follower(state), follower(state)
    assert await until_idle(one) == await until_idle(two) == [("new", "a"), ("new", "b"), ("new", "c")]
    state.append([FetchItem(state.file("d"))])
    assert await until_idle(one) == await until_idle(two) == [("new", "d")]


@checks("source:F9")
@pytest.mark.parametrize("room", [1, 7, 1 << 60])
async def test_a_new_consumer_gets_all_known_names_first_and_then_the_changes(room: int) -> None:
    """Including files that the lister decides on during the back-fill."""
    state = FollowedState()
    for number in range(30):
        state.append([FetchItem(state.file(f"k{(number * 7 + more) % 90:02}")) for more in range(3)])
    one = follower(state)
    await one.trigger(room)
    state.append([FetchItem(state.file("k05")), FetchItem(state.file("z"))], known=[state.file("empty", 0)])
    await one.until_idle(room)
    assert {key: known.file for key, known in one.known.files.items()} == {
        key: known.file for key, known in state.index.files.items()
    }
    assert set(one.delivered.values()) == {1}
    assert await one.until_idle(room) == []


async def test_a_file_that_is_cut_over_several_records_is_reported_once() -> None:
    state = FollowedState()
    one = follower(state)
    await one.until_idle()
    head, rest = FetchItem(state.file("big", 100)).cut(40)
    middle, end = rest.cut(70)
    state.append([head], carry=[rest])
    state.append([middle], carry=[end])
    assert await until_idle(one, room=1) == [("new", "big")]
    state.append([end], known=[state.file("big", 100)])
    assert await until_idle(one) == [("overwritten", "big")]


async def test_gone_and_returned_files_are_reported() -> None:
    state = FollowedState()
    file = state.file("a")
    state.append([FetchItem(file)])
    one = follower(state)
    await one.until_idle()
    state.append(gone=["a"])
    assert await until_idle(one) == [("gone", "a")]
    state.append(known=[file])
    assert await until_idle(one) == [("returned", "a")]
    assert one.delivered.total() == 1


async def test_a_file_gone_in_the_same_trigger_is_reported_as_gone() -> None:
    state = FollowedState()
    one = Follower(state.as_state(), EAGER, DictIndex())
    state.append([FetchItem(state.file(f"k{number}")) for number in range(40)])
    one.begin_trigger()
    page = await one.page(Follow(state=state.uuid))
    assert len(page.changes) == 40
    state.append(gone=["k3"])
    page = await one.page(page.after)
    assert kinds_of([change for change, _ in page.changes]) == [("gone", "k3")]


async def test_a_version_replaced_or_gone_since_is_not_reported() -> None:
    """A late follower would plan versions that can no longer be read."""
    state = FollowedState()
    one = follower(state)
    await one.until_idle()
    state.append([FetchItem(state.file(key)) for key in "xyz"])
    state.append([FetchItem(state.file("x"))], gone=["y"])
    last = state.append([FetchItem(state.file("x"))])
    assert await until_idle(one) == [("new", "z"), ("new", "x")]
    assert one.known.files["x"].file == last.items[0].file


async def test_a_name_that_was_gone_in_between_is_reported_as_new() -> None:
    state = FollowedState()
    state.append([FetchItem(state.file("x"))])
    one = follower(state)
    await one.until_idle()
    state.append(gone=["x"])
    state.append([FetchItem(state.file("x"))])
    state.append(gone=["x"])
    state.append([FetchItem(state.file("x"))])
    assert await until_idle(one) == [("gone", "x"), ("new", "x")]


async def test_records_are_read_once_and_no_more_than_a_page_needs() -> None:
    state = FollowedState()
    one = follower(state, page_files=20)
    await one.until_idle()
    for number in range(60):
        files = 1 if number < 30 else 15
        state.append([FetchItem(state.file(f"{number:02}-{more:02}")) for more in range(files)])
    reads: list[int] = []
    records = state.records

    async def counted(after: int, through: int) -> list[Record]:
        reads.append(through - after)
        return await records(after, through)

    state.records = counted  # type: ignore[method-assign]
    assert len(await one.until_idle()) == 30 + 30 * 15
    assert sum(reads) == 61  # And the one that the first of them follows, for what it carried over.
    assert len(reads) < 50
    assert max(reads[-20:]) == 1


async def test_known_files_make_up_for_removed_records() -> None:
    """Including deletions, even if the other source has forgotten them."""
    state = FollowedState()
    state.append([FetchItem(state.file(key)) for key in "abcdef"])
    one = follower(state)
    await one.until_idle()
    state.append([FetchItem(state.file("b"))], gone=["a"])
    state.append([FetchItem(state.file("g"))])
    state.forget()
    state.append()
    state.compact()
    assert await until_idle(one, room=1) == [("gone", "a"), ("overwritten", "b"), ("new", "g")]
    state.append([FetchItem(state.file("h"))])
    assert await until_idle(one) == [("new", "h")]


async def test_a_name_that_was_gone_meanwhile_is_new_although_the_records_were_removed() -> None:
    """Whatever became of it later, while it is back-filled included; one that was there all the time is overwritten."""
    state = FollowedState()
    state.append([FetchItem(state.file(key)) for key in "abcd"])
    one = follower(state)
    await one.until_idle()
    state.append(gone=["b", "c", "d"])
    state.append([FetchItem(state.file(key)) for key in "abcd"])
    state.append([FetchItem(state.file("c"))])
    state.compact()
    found = kinds_of(list(await one.trigger(room=1)))
    state.append([FetchItem(state.file("d"))])
    found += await until_idle(one, room=1)
    assert found == [("overwritten", "a"), ("new", "b"), ("new", "c"), ("gone", "d"), ("new", "d")]


async def test_a_record_that_was_followed_in_part_and_removed_then_is_not_followed_twice() -> None:
    state = FollowedState()
    one = follower(state)
    await one.until_idle()
    state.append([FetchItem(state.file(key)) for key in "abc"])
    assert kinds_of(list(await one.trigger(room=2))) == [("new", "a"), ("new", "b")]
    state.append([FetchItem(state.file(key)) for key in "abc"])
    state.compact()
    assert await until_idle(one) == [("overwritten", "a"), ("overwritten", "b"), ("new", "c")]


async def test_more_known_files_than_one_lookup_returns() -> None:
    """On both sides, on one, and with nothing left on the other."""
    state = FollowedState()
    state.append([FetchItem(state.file(f"k{number:05}")) for number in range(2500)])
    one = follower(state)
    assert len(await one.until_idle(room=900)) == 2500
    for number in range(10, 2490):
        state.append(gone=[f"k{number:05}"])
    state.append([FetchItem(state.file("j"))])
    state.forget()
    state.compact()
    found = await until_idle(one)
    assert sorted(found) == [*(("gone", f"k{number:05}") for number in range(10, 2490)), ("new", "j")]
    assert one.known.rows_max <= 1000


@pytest.mark.virtual
async def test_a_quiet_log_is_read_once_an_interval() -> None:
    state, known = FollowedState(), DictIndex()
    one = Consumer(
        Follower(state.as_state(), ListOptions(interval_seconds=60.0), known), known, cursor=Follow(state=state.uuid)
    )
    for _ in range(20):
        assert await one.trigger() == []
    assert state.looks <= 2


async def test_a_run_that_ends_goes_to_the_newest_record() -> None:
    state = FollowedState()
    state.append([FetchItem(state.file(key)) for key in "ab"])
    one = follower(state)
    one.feed.finish_by(0)
    await one.trigger(room=1)
    state.append([FetchItem(state.file("c"))])
    assert await until_idle(one, room=1) == [("new", "b")]
    assert one.is_idle
    one.feed.finish_by(0)  # As a planner does that goes back to an earlier cursor.
    state.append([FetchItem(state.file("d"))])
    assert await until_idle(one) == []
    one.feed.finish_by(None)
    assert await until_idle(one) == [("new", "c"), ("new", "d")]


async def test_other_states_and_older_copies_are_refused() -> None:
    state = FollowedState()
    one = Follower(state.as_state(), EAGER, DictIndex(), clock=hurried())
    with pytest.raises(InvalidArgument, match="TailAndSweep"):
        await one.page(TailAndSweep())
    with pytest.raises(StateConflict, match="'else'"):
        await one.page(Follow(state="else"))
    with pytest.raises(StateConflict, match="older copy"):
        await one.page(Follow(state="other", seq=7, through=7, backfill_key=None))


class World:
    """Another source that lists on, and a follower that stops, restarts and falls behind."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.state = FollowedState()
        self.one = follower(self.state)
        self.carry: list[FetchItem] = []
        self.gone: dict[str, SourceFile] = {}

    def list_on(self) -> None:
        """One record: files new and overwritten, read again or not, big ones cut, others gone and back."""
        chance, state = self.chance, self.state
        items, known = list(self.carry), []
        keys = chance.sample([f"k{number}" for number in range(25)], chance.randint(0, 5))
        gone = [key for key, one in state.index.files.items() if one.gone_ms is None and chance.random() < 0.05]
        for key in keys:
            if key in gone:
                continue
            returned = self.gone.pop(key, None)
            if returned is not None and chance.random() < 0.7:
                known.append(returned)
            elif chance.random() < 0.2:
                known.append(state.file(key, 0))
            else:
                items.append(FetchItem(state.file(key, 100)))
        items = [item for item in items if item.start == 0 or item.file.key not in keys]
        self.carry = []
        for number, item in enumerate(items):
            if item.start < 50 and chance.random() < 0.3:
                items[number], rest = item.cut(item.start + 30)
                self.carry.append(rest)
        self.gone |= {key: state.index.files[key].file for key in gone}
        state.append(items, self.carry, known, gone)

    async def step(self) -> None:
        """Something happens."""
        action = self.chance.random()
        if action < 0.5:
            self.list_on()
        elif action < 0.55:
            self.state.compact(self.chance.randint(1, 4))
        elif action < 0.58:
            self.state.forget()
            self.gone.clear()
        elif action < 0.65:
            known = self.one.known
            self.one.feed = Follower(self.state.as_state(), EAGER, known)
        else:
            await self.one.trigger(self.chance.randint(1, 9))

    async def run(self, steps: int) -> None:
        """Steps, then all that is left."""
        for _ in range(steps):
            await self.step()
        await self.one.until_idle()


@checks("source:L1", "source:F9")
@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32))
def test_each_version_is_reported_once_whatever_happens_meanwhile(seed: int) -> None:
    """In the end the follower knows what the other one knows."""
    world = World(seed)
    run_virtual(lambda: world.run(80))
    assert set(world.one.delivered.values()) <= {1}
    there = {key: one.file for key, one in world.state.index.files.items() if one.gone_ms is None}
    assert {key: one.file for key, one in world.one.known.files.items() if one.gone_ms is None} == there
    assert all((file.key, file.etag) in world.one.delivered for file in there.values())
