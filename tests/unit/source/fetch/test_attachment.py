"""Following another source, and the location of a state."""

from pathlib import Path
from typing import Any

import pytest

from aioprefetch.errors import ConfigInvalid, StateConflict
from aioprefetch.operator.operator import Operator
from aioprefetch.services.fs import Fs
from aioprefetch.source.fetch.cleaning import CleanOptions
from aioprefetch.source.fetch.source import FileSource, StateLocation
from aioprefetch.source.options import ListOptions
from aioprefetch.testing.conformance.suite import checks
from tests.unit.source.fetch.source_scene import Scene, batches_of


def looking_for(glob: str | None, **options: Any) -> ListOptions:
    return ListOptions(interval_seconds=0, glob=glob, **options)


async def leader(scene: Scene, **options: Any) -> FileSource:
    """It has planned all there is."""
    source = await scene.open("leader/", **options)
    await batches_of(source, source.initial_offset())
    return source


def location(scene: Scene) -> StateLocation:
    return StateLocation(scene.state_operator, "leader/")


@checks("source:F9")
async def test_a_source_over_another_directory_is_not_followed(scene: Scene) -> None:
    await leader(scene)
    for url in ("memory://another-bucket", "memory://bucket/below"):
        with pytest.raises(StateConflict, match=f"{url} cannot follow one over memory://bucket"):
            await scene.open("f/", url=url, attach_to=location(scene))


@checks("source:F9")
async def test_the_spelling_of_the_url_does_not_matter(scene: Scene) -> None:
    await leader(scene, url="s3a://bucket/in/")
    await scene.open("f/", url="s3://bucket/in", attach_to=location(scene))


@checks("source:F9")
async def test_a_follower_takes_what_its_own_glob_matches(scene: Scene) -> None:
    """Files known before, and later changes: new, overwritten, gone."""
    scene.put("a.jsonl", "b.csv", "_hidden.jsonl")
    one = await leader(scene, list_options=looking_for(None, hidden_files=True))
    follower = await scene.open("f/", list_options=looking_for("*.jsonl"), attach_to=location(scene))
    end = await follower.latest_offset(follower.initial_offset())
    assert await batches_of(follower, follower.initial_offset()) == [["a.jsonl"]]
    scene.put("c.jsonl", "d.csv", "_more.jsonl")
    scene.bucket.store.remove("b.csv")
    await batches_of(one, one.initial_offset())
    assert await batches_of(follower, end) == [["c.jsonl"]]


@checks("source:F9")
async def test_a_follower_that_would_miss_files_is_refused(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    await leader(scene, list_options=looking_for("*.jsonl"))
    with pytest.raises(StateConflict, match="would never find"):
        await scene.open("f/", attach_to=location(scene))
    await scene.open("g/", list_options=looking_for("*.jsonl"), attach_to=location(scene))
    assert not caplog.records
    await scene.open("h/", list_options=looking_for("a*.jsonl"), attach_to=location(scene))
    assert "files that both match" in caplog.text


@checks("source:F9")
async def test_a_follower_that_would_miss_hidden_files_is_refused(scene: Scene) -> None:
    scene.put("_x/a", "b")
    await leader(scene)
    with pytest.raises(StateConflict, match="would never find hidden files"):
        await scene.open("f/", list_options=looking_for(None, hidden_files=True), attach_to=location(scene))
    one = await scene.open("all/", list_options=looking_for(None, hidden_files=True))
    await batches_of(one, one.initial_offset())
    both = StateLocation(scene.state_operator, "all/")
    all_of_them = await scene.open("g/", list_options=looking_for(None, hidden_files=True), attach_to=both)
    assert await batches_of(all_of_them, all_of_them.initial_offset()) == [["_x/a", "b"]]
    some = await scene.open("h/", attach_to=both)
    assert await batches_of(some, some.initial_offset()) == [["b"]]


async def test_the_choice_of_hidden_files_is_kept(scene: Scene) -> None:
    await scene.open()
    with pytest.raises(StateConflict, match="'hidden_files' was 'false' and is 'true'"):
        await scene.open(list_options=looking_for(None, hidden_files=True))


async def test_a_follower_does_not_clean(scene: Scene) -> None:
    await leader(scene)
    with pytest.raises(ConfigInvalid, match="does not go with attach_to"):
        await scene.open("f/", attach_to=location(scene), clean=CleanOptions(mode="delete"))


async def test_a_state_within_the_source_is_refused(scene: Scene, tmp_path: Path) -> None:
    async with Operator.bare(Fs(tmp_path)) as root, Operator.bare(Fs(tmp_path / "in")) as source:
        for operator, state, directory in (
            (root, root, ""),
            (root, root, "checkpoint/state/"),
            (root, source, "state/"),
            (source, root, "in/state/"),
        ):
            with pytest.raises(ConfigInvalid, match="lies within the source"):
                await scene.open(directory, operator=operator, state_operator=state, url="file:///x")
        await scene.open("_state/", operator=root, state_operator=root, url="file:///x")
        await scene.open("state/", operator=source, state_operator=root, url="file:///x")
        narrow = looking_for("*.jsonl")
        await scene.open("other/", operator=root, state_operator=root, url="file:///x", list_options=narrow)


async def test_a_restart_may_spell_the_url_otherwise(scene: Scene) -> None:
    scene.put("a")
    one = await scene.open(url="s3a://Bucket/in/")
    assert await batches_of(one, one.initial_offset()) == [["a"]]
    two = await scene.open(url="s3://bucket/in")
    assert two.initial_offset() == one.initial_offset()
    with pytest.raises(StateConflict, match="url was"):
        await scene.open(url="s3://bucket/in2")
