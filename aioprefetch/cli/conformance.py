"""``doctor --conformance``: all checks of a store, below a directory of a random name that is removed again."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import click

from aioprefetch.cli import CLEAN_UP_SECONDS
from aioprefetch.cli.places import Stores
from aioprefetch.cli.printing import note
from aioprefetch.errors import InvalidArgument, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.sync import run


def check_conformance(place: str, stores: Stores, checks: Any, *, is_sure: bool, lacks: Collection[str]) -> None:
    """Add what comes of the checks of `aioprefetch.testing` on a store. ``InvalidArgument`` says what that would do."""
    from aioprefetch.testing.conformance.on_a_store import CHECK_NAMES
    from aioprefetch.testing.conformance.suite import TRAITS

    if unknown := sorted(set(lacks) - TRAITS.keys()):
        hint = "; ".join(f"{name}: {text}" for name, text in TRAITS.items())
        raise InvalidArgument(f"--lacks {', '.join(unknown)}: there is no such trait", context={"hint": hint})
    if not __debug__:
        raise InvalidArgument("python -O leaves out what the checks assert: run without it", operation="doctor")
    side = stores.side(place)
    store = stores.operator_of(side)
    directory = f"{side.path.rstrip('/')}/aioprefetch-{secrets.token_hex(8)}/".lstrip("/")
    url = f"{store.info.url.rstrip('/')}/{directory}"
    if not is_sure:
        raise InvalidArgument(
            f"{len(CHECK_NAMES)} checks would write, copy, list and delete objects below {url}, by some 2,000 requests "
            "that carry 80 MB, and then remove all of it: give --yes as well to have that done",
            operation="doctor",
        )
    note(f"checking below {url}, which is removed at the end, in some minutes")
    click.get_current_context().meta[CLEAN_UP_SECONDS] = 10.0
    try:
        run(_run(store, directory, url, stores.options_of(place), checks, set(lacks)))
    finally:  # A separate call: an interruption leaves time for it.
        run(_remove(store, directory, checks))


async def _run(store: Operator, directory: str, url: str, options: Any, checks: Any, lacks: set[str]) -> None:
    from aioprefetch.testing.conformance.on_a_store import run_checks

    def root(number: str) -> tuple[Operator, Operator]:
        operator = Operator.from_uri(f"{url}{number}/", **options)
        return operator, Operator.bare(operator.service)

    # Whether a bucket keeps versions is a setting of it, and no defect.
    version = (await store.write(f"{directory}probe", b"")).version
    lacks.add("keeps_versions" if version in (None, "null") else "replaces_at_once")
    async for name, outcome, text in run_checks(root, lacks):
        checks.add(name, outcome, text)


async def _remove(store: Operator, directory: str, checks: Any) -> None:
    """Remove the directory, with all versions and unfinished uploads. What cannot be is a failure."""
    async with checks.guarded(f"removal of {directory}"):
        with suppress(Unsupported):
            await store.abort_uploads(directory)
        with suppress(Unsupported):
            versions = store.list(directory, recursive=True, versions=True)
            await store.delete([(entry.path, entry.version) async for entry in versions])
        await store.delete_all(directory)
