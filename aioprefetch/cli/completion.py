"""Completion of places by the shell: local files by the shell itself, objects by a listing of their store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from aioprefetch.cli.places import Stores, is_account
from aioprefetch.errors import Error
from aioprefetch.operator.listing import list_literally
from aioprefetch.operator.transfer.sides import Side
from aioprefetch.sync import run

Callback = TypeVar("Callback", bound=Callable[..., Any])

ENTRIES_MAX = 100
SECONDS_MAX = 2.0


def complete_place(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The places that begin with a text. Nothing where the store does not respond in time, or refuses."""
    if "://" not in incomplete:
        return [CompletionItem(incomplete, type="file")]
    try:
        with Stores() as stores:
            scheme, _, rest = incomplete.partition("://")
            if "/" not in rest and (places := _buckets(stores, f"{scheme}://", rest)):
                return [CompletionItem(place) for place in places]
            side = stores.side(incomplete)
            return [CompletionItem(place) for place in run(_places(side, incomplete), SECONDS_MAX)]
    except Error:
        return []


def _buckets(stores: Stores, account: str, name: str) -> list[str]:
    """The buckets whose names begin with a text, none where one has this very name or they cannot be listed."""
    if not is_account(account):
        return []
    try:
        places = [f"{account}{entry.path}" for entry in stores.buckets_of(stores.account(account))]
    except Error:
        return []
    if f"{account}{name}/" in places:
        return []
    return [place for place in places if place.startswith(f"{account}{name}")][:ENTRIES_MAX]


async def _places(side: Side, incomplete: str) -> list[str]:
    stem = incomplete.removesuffix(side.path)
    if not side.path and not stem.endswith("/"):
        stem = f"{stem}/"
    places: list[str] = []
    async with list_literally(side.operator, side.path) as entries:
        async for entry in entries:
            places.append(f"{stem}{entry.path}")
            if len(places) == ENTRIES_MAX:
                break
    return places


def place_argument(name: str, metavar: str, **options: Any) -> Callable[[Callback], Callback]:
    """An argument that is a place, or several."""
    return click.argument(name, metavar=metavar, shell_complete=complete_place, **options)
