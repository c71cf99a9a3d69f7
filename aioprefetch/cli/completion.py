"""Completion of places by the shell: local files by the shell itself, objects by a listing of their store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import BashComplete, CompletionItem, split_arg_string

from aioprefetch.cli.places import Stores, is_account
from aioprefetch.errors import Error
from aioprefetch.operator.listing import list_literally
from aioprefetch.operator.transfer.sides import Side
from aioprefetch.sync import run

Callback = TypeVar("Callback", bound=Callable[..., Any])

ENTRIES_MAX = 100
SECONDS_MAX = 2.0


class UrlBashComplete(BashComplete):
    """Completion by bash, which takes the ``:`` of a URL for the end of a word, and replaces what is behind it."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value
    response=$(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORD="${COMP_WORDS[COMP_CWORD]}" \
        %(complete_var)s=bash_complete $1)
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == file ]]; then
            COMPREPLY=()
            compopt -o default
        else
            COMPREPLY+=("$value")
            [[ $value == */ ]] && compopt -o nospace
        fi
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
    _behind = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words of the line before the one to complete, and that one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() else words.pop()
        self._behind = max(0, len(incomplete) - len(os.environ["COMP_WORD"].lstrip("'\"")))
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """An item, from where bash replaces the word."""
        return f"{item.type},{item.value[self._behind :]}"


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
            places = run(_places(side, incomplete), SECONDS_MAX)
            # Others would break the lines of the shell's protocol, or be commands to the terminal.
            return [CompletionItem(place) for place in places if place.isprintable()]
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
