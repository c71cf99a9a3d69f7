"""By which record a name was new last, through compactions, deletions and later versions."""

import random
from dataclasses import replace

from aioprefetch.source.state.source_state import SourceState
from tests.profile import chosen
from tests.unit.source.state.stores import SMALL, add, file, memory, opened, pages


class Names:
    """The model: the keys that exist, and those that are gone."""

    def __init__(self) -> None:
        self.since: dict[str, int] = {}
        self.there: set[str] = set()

    async def step(self, state: SourceState, chance: random.Random) -> None:
        """A record with new versions of some names and the end of others."""
        names = chance.sample([f"k{number:02}" for number in range(25)], 6)
        gone, planned = names[: chance.randint(0, 3)], names[3:]
        record = await add(
            state, *(file(key, chance.randint(0, 10**6)) for key in planned), gone=dict.fromkeys(gone, 10**6)
        )
        self.there.difference_update(gone)
        for key in planned:
            if key not in self.there:
                self.since[key] = record.seq
        self.there.update(planned)


async def test_since_when_a_name_exists_survives_compactions() -> None:
    options = replace(SMALL, forget_after_seconds=1e6)
    for seed in range(chosen(quick=3, full=8)):
        chance = random.Random(seed)
        base, names = memory(), Names()
        state = await opened(base, options=options)
        for _ in range(60):
            await names.step(state, chance)
            if chance.random() < 0.2:
                await state.compact()
            if chance.random() < 0.05:
                state = await opened(base, options=options)
            if chance.random() < 0.2:
                files = await pages(state.index, 7)
                assert {known.file.key: known.since for known in files} == names.since, seed


async def test_a_name_that_was_forgotten_is_new() -> None:
    base = memory()
    state = await opened(base, clock_ms=lambda: 10**6)
    await add(state, "a", "b")
    await state.compact()
    await add(state, gone={"a": 0})
    await state.compact()
    assert [one.file.key for one in await pages(state.index, 7)] == ["b"]
    await add(state, file("a", 1), file("b", 1))
    for _ in range(2):
        assert [(one.file.key, one.since, one.seq) for one in await pages(state.index, 7)] == [("a", 3, 3), ("b", 1, 3)]
        await state.compact()
