"""The option ``disk_cache``: valid values, where they may come from, and the errors of invalid ones."""

import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.blocks.disk_tier import DiskTier
from aioprefetch.blocks.store import BlockStore
from aioprefetch.runtime.options import DiskCache
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of
from tests.stores.failing_disk import files_in, read_until_on_disk

BLOCK = 1 << 14
SMALL: dict[str, Any] = {"block_bytes": BLOCK, "memory_bytes": 2 * BLOCK, "prefetch_blocks": 0}


def test_a_path_means_the_defaults() -> None:
    for given in ("/var/cache/x", Path("/var/cache/x"), "//var/./cache//x/", DiskCache("/var/cache/x")):
        operator = ap.Operator(ap.services.Memory(), disk_cache=given)
        assert operator.options.disk_cache == DiskCache("/var/cache/x")
    assert operator.options.disk_cache is not None
    assert operator.options.disk_cache.directory == "/var/cache/x"
    assert ap.Operator(ap.services.Memory()).options.disk_cache is None


@each_of(
    ("given", "message"),
    [
        ("", "not ''"),
        ("cache", "an absolute path, not 'cache'"),
        ("~/cache", "an absolute path, not '~/cache'"),
        ("/a/../b", r"a path without '\.\.' segments, not '/a/\.\./b'"),
        ("/a\0b", "the path of a directory as text"),
        (b"/a", "not b'/a'"),
        (True, "not True"),
        (5, "not 5"),
        ({}, "not {}"),
    ],
)
def test_an_invalid_path_is_refused_at_once(given: Any, message: str) -> None:
    with pytest.raises(ap.ConfigInvalid, match=f"disk_cache: .*{message}") as caught:
        ap.Operator.from_uri("memory://x", disk_cache=given)
    assert caught.value.operation == "configure"


@each_of(
    ("options", "message"),
    [
        ({"capacity_bytes": 0}, "capacity_bytes must be an integer of at least 1, not 0"),
        ({"capacity_bytes": -1}, "not -1"),
        ({"capacity_bytes": 1e9}, "not 1000000000.0"),
        ({"capacity_bytes": True}, "not True"),
        ({"read_timeout_seconds": 0}, "read_timeout_seconds must be a number of seconds above 0, not 0"),
        ({"read_timeout_seconds": float("nan")}, "not nan"),
        ({"cool_down_seconds": float("inf")}, "cool_down_seconds must be .*, not inf"),
        ({"cool_down_seconds": "30"}, "not '30'"),
        ({"tenant": None}, "tenant must be text, not None"),
    ],
)
def test_invalid_numbers_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ap.ConfigInvalid, match=f"disk_cache: .*{message}"):
        ap.DiskCache("/var/cache/x", **options)


def test_a_capacity_below_a_block_is_refused() -> None:
    with pytest.raises(ap.ConfigInvalid, match="disk_cache: capacity_bytes must be more than block_bytes=8388608"):
        ap.Operator(ap.services.Memory(), disk_cache=ap.DiskCache("/x", capacity_bytes=8 << 20))


def test_options_are_frozen_and_pickle_with_their_operator() -> None:
    options = ap.DiskCache("/var/cache/x", capacity_bytes=1 << 30, tenant="t")
    assert pickle.loads(pickle.dumps(options)) == options
    operator = ap.Operator.from_uri("memory://x", disk_cache=options)
    assert pickle.loads(pickle.dumps(operator)).options.disk_cache == options
    assert hash(options) == hash(dataclasses.replace(options))
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.tenant = "u"  # type: ignore[misc]


def test_the_variable_names_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOPREFETCH_DISK_CACHE", "/var/cache/x")
    assert ap.Operator.from_uri("memory://x").options.disk_cache == DiskCache("/var/cache/x")
    given = ap.Operator.from_uri("memory://x", disk_cache="/other")
    assert given.options.disk_cache == DiskCache("/other")
    monkeypatch.setenv("AIOPREFETCH_DISK_CACHE", "relative")
    with pytest.raises(ap.ConfigInvalid, match=r"disk_cache: .*'relative'"):
        ap.Operator.from_uri("memory://x")


async def test_making_an_operator_touches_no_disk(tmp_path: Path) -> None:
    async with ap.Operator.from_uri("memory://disk-untouched", disk_cache=tmp_path / "new", **SMALL) as operator:
        await operator.write("k", bytes(10))
        operator.reader("k")
        assert await operator.read("k") == bytes(10)
    assert not (tmp_path / "new").exists()


async def test_operators_of_one_family_share_a_tier_and_others_the_files(tmp_path: Path) -> None:
    data = os.urandom(6 * BLOCK)
    operators = [ap.Operator.from_uri("memory://disk-shared", disk_cache=tmp_path, **SMALL) for _ in range(2)]
    operators.append(operators[0].layer(ap.layers.RetryLayer(attempts_max=1)))
    await operators[0].write("k", data)
    for operator in operators:
        async with operator.reader("k", policy="sequential") as reader:
            assert await reader.read_at(0, len(data)) == data
            await read_until_on_disk(reader, data, tmp_path, 5)
    tiers = [BlockStore.of(operator.runtime()).disk for operator in operators]
    assert tiers[0] is tiers[2]
    assert isinstance(tiers[1], DiskTier)
    assert tiers[1] is not tiers[0]
    for operator in operators[:2]:
        await operator.aclose()


@checks("reliability:K22")
async def test_tenants_do_not_share(tmp_path: Path) -> None:
    data = os.urandom(4 * BLOCK)
    for number, tenant in enumerate(("a", "b"), 1):
        disk = ap.DiskCache(tmp_path, tenant=tenant)
        async with ap.Operator.from_uri("memory://disk-tenants", disk_cache=disk, **SMALL) as operator:
            etag = (await operator.write("k", data)).etag if number == 1 else (await operator.stat("k")).etag
            async with operator.reader("k", policy="sequential", etag=etag, size=len(data)) as reader:
                assert await reader.read_at(0, len(data)) == data
                assert operator.statistics["stream_read_block_disk_hits"] == 0
                await read_until_on_disk(reader, data, tmp_path, 3 * number)


def test_a_file_of_the_sync_shim_takes_it(tmp_path: Path) -> None:
    data = os.urandom(4 * BLOCK)
    blocking = ap.sync.BlockingOperator(ap.Operator.from_uri("memory://disk-sync"))
    blocking.write("k", data)
    with ap.sync.open(
        "memory://disk-sync/k", disk_cache=str(tmp_path), policy="sequential", block_bytes=BLOCK, memory_bytes=2 * BLOCK
    ) as file:
        while not files_in(tmp_path):
            file.seek(0)
            assert file.read() == data
    blocking.close()
