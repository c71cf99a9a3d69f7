"""Completion of places by the shell: local files by the shell itself, objects by a listing of their store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete

from aioprefetch.cli.places import Stores, is_account
from aioprefetch.errors import Error, TimedOut
from aioprefetch.operator.listing import list_literally
from aioprefetch.operator.transfer.sides import Side
from aioprefetch.sync import run

Callback = TypeVar("Callback", bound=Callable[..., Any])

ENTRIES_MAX = 100
SECONDS_MAX = 2.0
# What a backslash quotes between double quotes.
_ESCAPED_IN_QUOTES = '$`"\\\n'


class WholeNamesFishComplete(FishComplete):
    """Completion by fish, of names with commas too."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


class UrlBashComplete(BashComplete):
    """Completion by bash, which takes the ``:`` of a URL for the end of a word, and replaces what is behind it.

    bash inserts what it gets as it is, so that an object named ``$(command)`` would be a command: all is quoted here.
    """

    source_template = """\
%(complete_func)s() {
    local response line value
    response=$(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORD="$2" \
        %(complete_var)s=bash_complete "$1")
    while IFS= read -r line; do
        value=${line#*,}
        if [[ ${line%%%%,*} == file ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ -n $line ]]; then
            COMPREPLY+=("$value")
            [[ $value == */ ]] && compopt -o nospace
        fi
    done <<< "$response"
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
    _kept = ""
    _quote = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words of the line before the one to complete, and that one."""
        line = os.environ["COMP_LINE"]
        words, _ = split_words(line)
        # bash replaces the text COMP_WORD at the end of the line, and keeps what is before it.
        kept, self._quote = split_words(line[: len(line) - len(os.environ["COMP_WORD"])])
        self._kept = kept[-1]
        return words[1:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """An item, from where bash replaces the word, as it is written there."""
        return f"{item.type},{quoted(item.value.removeprefix(self._kept), self._quote)}"


def split_words(line: str) -> tuple[list[str], str]:
    """The words of a line up to the cursor, as bash reads them, and the quote that is open there.

    The last word is the one at the cursor, which may be empty.
    """
    words, quote = [""], ""
    characters = iter(line)
    for character in characters:
        if character == quote:
            quote = ""
        elif character == "\\" and quote != "'":
            escaped = next(characters, "")
            words[-1] += f"\\{escaped}" if quote and escaped not in _ESCAPED_IN_QUOTES else escaped
        elif not quote and character in "'\"":
            quote = character
        elif not quote and character.isspace():
            words.append("")
        else:
            words[-1] += character
    return [*filter(None, words[:-1]), words[-1]], quote


def quoted(text: str, quote: str) -> str:
    """A text as it is written on a command line of bash where a quote is open, or none.

    bash closes the quote, unless the text ends with such a character.
    """
    if not quote:
        return re.sub(r"([^A-Za-z0-9._/:=@%+,~\x80-\U0010ffff-])", r"\\\1", text)
    written = text.replace("'", "'\\''")
    if quote == '"':
        # A backslash does not protect from the history there: "!" is written in quotes of the other kind.
        written = re.sub(r'(["$`\\])', r"\\\1", text).replace("!", "\"'!'\"")
    return f"{written}{quote}" if written.endswith(quote) else written


def complete_place(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The places that begin with a text. Nothing where the store does not respond in time, or refuses."""
    if "://" not in incomplete:
        return [CompletionItem(incomplete, type="file")]
    try:
        with Stores() as stores:
            scheme, _, rest = incomplete.partition("://")
            if "/" not in rest and (places := _buckets(stores, f"{scheme}://", rest)):
                return _items(places)
            side = stores.side(incomplete)
            return _items(run(_places(side, incomplete), SECONDS_MAX))
    except Error:
        return []


def _items(places: list[str]) -> list[CompletionItem]:
    # Others would break the lines of the shell's protocol, or be commands to the terminal.
    return [CompletionItem(place) for place in places if place.isprintable()]


def _buckets(stores: Stores, account: str, name: str) -> list[str]:
    """The buckets whose names begin with a text, none where one has this very name or they cannot be listed.

    ``TimedOut`` where the store does not respond in time.
    """
    if not is_account(account):
        return []
    try:
        entries = stores.buckets_of(stores.account(account), SECONDS_MAX)
    except TimedOut:
        raise
    except Error:
        return []
    places = [f"{account}{entry.path}" for entry in entries]
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
