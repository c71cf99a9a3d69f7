"""Files that cannot grow any further while a verb writes them: the system stops them at a size, as a full disk does."""

import random
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aioprefetch.errors import Error
from aioprefetch.testing.conformance.suite import checks
from tests.model.verbs.doors import by_operator
from tests.model.verbs.places import FilesPlace, MemoryPlace, opened
from tests.model.verbs.tree import Tree, check
from tests.probes.descriptors import descriptors_below
from tests.probes.search import SEED
from tests.reliability.written_tree import LARGE, LONG, OBJECTS, STEPS, TRANSFERS, TREE

BEFORE: Tree = {**TREE, "a/x": LARGE}
WRITING = ("write in parts", "write new in parts", "writer", "copy", "copy to nothing", "copy tree", "sync")
SOURCE = random.Random(SEED)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process grows beyond a size; none but those of the test is as long."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@checks("reliability:W34", "reliability:W35")
@pytest.mark.parametrize("name", WRITING)
async def test_a_write_that_finds_no_room_leaves_the_old_file(name: str) -> None:
    step = STEPS[name]
    for size in (1 << 20, SOURCE.randrange(1 << 20, len(LARGE)), len(LARGE) - 1):
        async with opened("files") as place:
            await place.plant(BEFORE)
            async with place.operator() as op:
                with files_of_at_most(size), pytest.raises(Error) as caught:
                    await by_operator(op, step)
            check(BEFORE, place.tree(), place.meaning.of(BEFORE, step), caught.value, step)
            assert isinstance(place, FilesPlace)
            assert descriptors_below(place.root) == []


@checks("reliability:W34", "reliability:W35")
async def test_a_download_that_finds_no_room_leaves_the_old_file() -> None:
    transfer = TRANSFERS["resumable download"]
    for size in (1 << 20, SOURCE.randrange(1 << 20, len(LONG)), len(LONG) - 1):
        with tempfile.TemporaryDirectory() as folder:
            local, place = FilesPlace(Path(folder)), MemoryPlace()
            await local.plant(transfer.files)
            await place.plant(OBJECTS)
            async with place.operator() as op:
                with files_of_at_most(size), pytest.raises(Error) as caught:
                    await transfer.run(op, local.root)
            transfer.check(local.tree(), place.tree(), caught.value)
            assert descriptors_below(local.root) == []
