"""``include_existing=False``: what is there when a source is made is known, and nothing that comes later is lost."""

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import PermissionDenied
from aioprefetch.source.fetch.planner import PlanOptions
from aioprefetch.source.fetch.source import FileSource
from aioprefetch.source.options import ListOptions
from aioprefetch.values import ListPage, ListRequest
from tests.stores.verb_layer import VerbLayer
from tests.unit.source.fetch.source_scene import Scene, batches_of

pytestmark = pytest.mark.virtual
LATER = ListOptions(interval_seconds=0, include_existing=False, overwrites="reread")


async def keys_of(source: FileSource) -> list[str]:
    """The sorted keys of all batches from the beginning on."""
    return sorted(key for batch in await batches_of(source, source.initial_offset()) for key in batch)


async def test_existing_files_are_known_and_later_ones_are_read_wherever_they_sort(scene: Scene) -> None:
    scene.put(*(f"m{number:04}" for number in range(2500)), modified_ms=1000)
    source = await scene.open(list_options=LATER, clock_ms=lambda: 5000)
    scene.put("a", "m0005x", "z", modified_ms=6000)
    scene.put("m0007", modified_ms=6000, size=11)
    later = ["a", "m0005x", "m0007", "z"]
    assert await keys_of(source) == later
    again = await scene.open(list_options=LATER, clock_ms=lambda: 9000)
    scene.put("b", modified_ms=4000)  # Of a time before the start: it came later.
    assert await keys_of(again) == sorted([*later, "b"])


class SecondPageDenied(VerbLayer):
    pages = 0

    async def list_page(self, inner: Accessor, request: ListRequest) -> ListPage:
        self.pages += 1
        if self.pages == 2:
            raise PermissionDenied("no", operation="list")
        return await inner.list_page(request)


async def test_a_start_that_failed_half_way_goes_on_with_its_own_time(scene: Scene) -> None:
    """Files of the time between the two starts are not taken for existing ones."""
    scene.put(*(f"m{number:04}" for number in range(3000)), modified_ms=1000)
    plan_options = PlanOptions(learned_max=500)
    denied = scene.operator.layer(SecondPageDenied())
    with pytest.raises(PermissionDenied):
        await scene.open(operator=denied, list_options=LATER, plan_options=plan_options, clock_ms=lambda: 5000)
    scene.put("a", "z", modified_ms=6000)
    source = await scene.open(list_options=LATER, plan_options=plan_options, clock_ms=lambda: 90_000)
    assert await keys_of(source) == ["a", "z"]
