"""The part that all commands share: places, their completion by the shell, their stores, and the form of a command."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, add_completion_class

from aioprefetch.cli import HELP_COLUMNS_MAX
from aioprefetch.cli.other_tools import NEEDLESS_OPTIONS, SAME_OPTIONS, ours
from aioprefetch.cli.printing import note_failure, note_nothing
from aioprefetch.errors import (
    ConfigInvalid,
    Error,
    InvalidArgument,
    IsADirectory,
    MissingDependency,
    NotFound,
    PermissionDenied,
    TimedOut,
    Unsupported,
)
from aioprefetch.layers import ThrottleLayer
from aioprefetch.operator.copying import side_of
from aioprefetch.operator.from_uri import option_from_text, recipe_of, split_uri, store_options
from aioprefetch.operator.operator import Operator
from aioprefetch.sync import run
from aioprefetch.sync.iteration import BlockingListing
from aioprefetch.transfer.sides import Selection, Side, select
from aioprefetch.values import Entry, Metadata
from aioprefetch.verbs.listing import list_literally

if TYPE_CHECKING:
    from aioprefetch.operator.options import UriOptions

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# Options of stores that have a name of their own beside ``-o``.
_NAMED = ("endpoint_url", "region", "profile", "anonymous", "addressing_style", "ca_bundle")


class Stores:
    """The stores of one command: the options for them, and the operators that are open until the command ends.

    ``is_literal``: its places are names, never patterns.
    """

    def __init__(self, texts: Sequence[tuple[str, str]] = (), *, is_literal: bool = False) -> None:
        self._texts = tuple(texts)
        self.is_literal = is_literal
        self._operators: list[Operator] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._close())

    async def _close(self) -> None:
        async with AsyncExitStack() as closing:
            for operator in self._operators:
                closing.push_async_callback(operator.aclose)

    def check(self, *places: str) -> None:
        """``ConfigInvalid`` for an option that the store of no place takes, ``InvalidArgument`` for a place ``-``."""
        if "-" in places:
            raise InvalidArgument(
                "- is neither standard input nor output here",
                context={"hint": "cp - PLACE reads one, cat PLACE writes to the other; a file of this name is ./-"},
            )
        schemes = [scheme_of(place) for place in places]
        for name, text in self._texts:
            if not any(name in store_options(scheme) for scheme in schemes):
                option_from_text(schemes[0], name, text)

    def options_of(self, place: str, others: Sequence[tuple[str, str]] = ()) -> UriOptions:
        """The given options that the store of a place takes, and all of ``others``, for ``Operator.from_uri``."""
        scheme = scheme_of(place)
        allowed = store_options(scheme)
        texts = [*((name, text) for name, text in self._texts if name in allowed), *others]
        options: Any = {name: option_from_text(scheme, name, text) for name, text in texts}
        return cast("UriOptions", options)

    def side(self, place: str, others: Sequence[tuple[str, str]] = (), *, follows: bool = True) -> Side:
        """The operator of a place, which is open until the command ends, and the path in it; see ``options_of``.

        With ``follows`` a link to a local file is that file.
        """
        options = self.options_of(place, others)
        operator, side = run(side_of(place, options, "place", follows=follows, is_literal=self.is_literal))
        self._operators.append(operator)
        return side

    def account(self, place: str) -> Side:
        """The side of a place that names no store, such as ``s3://``: its entries come from ``buckets_of``.

        ``Unsupported`` where they cannot be listed.
        """
        if not hasattr(recipe_of(scheme_of(place)), "buckets"):
            hint = f"name one: {place}bucket/"
            raise Unsupported("the buckets cannot be listed here", path=place, context={"hint": hint})
        # A recipe needs a bucket; what asks for all of them neither sends this one nor names it.
        return replace(self.side(f"{place}any-bucket"), label=place)

    def buckets_of(self, side: Side, seconds_max: float | None = None) -> list[Entry]:
        """The buckets of an account, as directories. ``TimedOut`` after ``seconds_max``."""
        operator = self.operator_of(side)

        async def names() -> list[str]:
            service: Any = operator.service
            found: list[str] = await service.buckets(operator.runtime()).names()
            return found

        try:
            return [Entry(path=f"{name}/", kind="directory") for name in run(names(), seconds_max)]
        except Error as error:
            error.context["service"] = " at ".join(filter(None, (side.label, operator.info.endpoint)))
            if isinstance(error, PermissionDenied):
                error.context.setdefault("hint", f"name one: {side.label}bucket/")
            raise

    def operator_of(self, side: Side, bytes_per_second: Any = None) -> Operator:
        """The operator of a side that was opened here, at a rate if there is one."""
        operator = next(operator for operator in self._operators if operator is side.operator)
        return operator if bytes_per_second is None else operator.layer(ThrottleLayer(bytes_per_second))

    def operator(self, place: str) -> tuple[Operator, str]:
        """The operator of a place that is one object, and its path. ``ConfigInvalid`` without a path."""
        side = self.side(place)
        if not side.path or side.path.endswith("/"):
            raise ConfigInvalid(f"{side.label!r} names no object, but a store or a directory", operation="open")
        return self._operators[-1], side.path


def scheme_of(place: str) -> str:
    """The scheme of a URL; ``file`` for a local path."""
    return split_uri(place)[0] if "://" in place else "file"


def is_account(place: str) -> bool:
    """Whether a place is a scheme alone, such as ``s3://``, and its stores are what is below it."""
    scheme, separator, rest = place.partition("://")
    return bool(separator) and not rest and scheme.lower() not in ("file", "http", "https")


def stem_of(side: Side) -> str:
    """The text before the path of an entry that makes it a place again, as the caller wrote it."""
    if not side.path:
        return side.label if side.label.endswith("/") else f"{side.label}/"
    if side.label.endswith(side.path):
        return side.label[: -len(side.path)]
    return f"{side.operator.info.url.rstrip('/')}/"


def selection_of(side: Side, glob: str | None = None, *, is_recursive: bool = True, hint: str = "") -> Selection:
    """The objects that a place names: one, all that match, or with ``is_recursive`` all below a directory.

    An object whose key ends with ``/`` is one without ``is_recursive``, and is in its directory with it.
    ``NotFound`` for a missing object, ``IsADirectory`` for a directory without ``is_recursive``, with the ``hint``.
    """
    hints: dict[str, object] = {"hint": hint} if hint else {}
    try:
        selection: Selection = run(select(side, glob))
    except IsADirectory:
        if not is_recursive:
            raise IsADirectory("it is a directory", path=side.label, context=hints) from None
        selection = run(select(replace(side, path=f"{side.path}/"), None))
    if not is_recursive and selection.single is None and selection.glob is None:
        with suppress(NotFound):
            if selection.base and not (found := run(side.operator.stat(selection.base))).is_directory:
                return replace(selection, single=found)
        raise IsADirectory("it is a directory", path=side.label, context=hints)
    if not side.path and side.root is not None and not os.path.isdir(side.root):
        raise NotFound("there is no such directory", path=side.label)
    return selection


def objects_of(selection: Selection) -> Iterator[Entry | Metadata]:
    """The objects of a selection."""
    if selection.single is not None:
        yield selection.single
        return
    with BlockingListing(selection.listing()) as entries:
        yield from (entry for entry in entries if not entry.is_directory)


def visit_each(sides: Iterable[Side], visit: Callable[[Side], bool]) -> dict[str, str]:
    """Call ``visit`` for each place; it returns whether there was something. A failure does not stop the others.

    The places that have failed, or have nothing, with the kinds of their errors. Each is noted on standard error.
    Arguments that cannot work are raised.
    """
    failures: dict[str, str] = {}
    for side in sides:
        try:
            is_something = visit(side)
        except (InvalidArgument, MissingDependency):
            raise
        except Error as error:
            note_failure(error)
            failures[side.label] = error.kind
            continue
        if not is_something:
            note_nothing(side)
            failures[side.label] = "NotFound"
    return failures


Callback = Callable[..., int]


def command(name: str, *, examples: str) -> Callable[[Callback], click.Command]:
    """Make a function a command: it gets the stores as ``stores``, and returns the exit code.

    ``examples`` are lines for the end of its help.
    """
    lines = "\n".join(f"  {line}" for line in examples.strip().splitlines())

    def decorate(callback: Callback) -> click.Command:
        @functools.wraps(callback)
        def run_callback(**values: Any) -> int:
            texts = [*values.pop("option"), *_named_texts(values)]
            with Stores(texts, is_literal=values.pop("is_literal", False)) as stores:
                if places := values.get("places", [values[name] for name in values if name == "place"]):
                    stores.check(*places)
                return callback(stores=stores, **values)

        made = click.command(
            name,
            epilog=f"\b\nExamples:\n{lines}",
            context_settings={"max_content_width": HELP_COLUMNS_MAX, "token_normalize_func": _our_name},
        )(run_callback)
        made.params += _store_options()
        return made

    return decorate


def pairs(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> list[tuple[str, str]]:
    """The names and texts of options that are written NAME=VALUE."""
    if any(not text.partition("=")[1] for text in texts):
        raise click.BadParameter("an option is written NAME=VALUE", context, parameter)
    return [(name.strip().replace("-", "_"), value) for name, _, value in (text.partition("=") for text in texts)]


literal_option = click.option(
    "--literal", "is_literal", is_flag=True, help="Take names as they are, never as patterns."
)


bwlimit_option = click.option(
    "--bwlimit", metavar="BYTES", help="Read and write at most this much a second, such as 10MiB."
)


def _store_options() -> list[click.Parameter]:
    """The options of all commands. Secrets are not among them: command lines are public."""
    option_help = "An option of the store, such as memory_bytes=1GiB; a secret as secret_access_key=env:VARIABLE."
    return [
        click.Option(["-o", "option"], multiple=True, metavar="NAME=VALUE", callback=pairs, help=option_help),
        click.Option(["--endpoint-url"], metavar="URL", help="The address of the store, if not AWS."),
        click.Option(["--region"], metavar="NAME", help="The region of the bucket."),
        click.Option(["--profile"], metavar="NAME", help="The AWS profile to take credentials from."),
        click.Option(["--anonymous"], is_flag=True, default=None, help="Send no credentials."),
        click.Option(["--addressing-style"], metavar="STYLE", help="How URLs name the bucket: auto, path or virtual."),
        click.Option(["--ca-bundle"], metavar="FILE", help="Certificates to trust."),
        click.Option(NEEDLESS_OPTIONS, is_flag=True, expose_value=False, hidden=True),
        click.Option(["--debug"], is_flag=True, expose_value=False, callback=_debug, help="Show tracebacks."),
    ]


def _our_name(word: str) -> str:
    return ours(word, SAME_OPTIONS) or word


def _debug(context: click.Context, parameter: click.Parameter, is_set: bool) -> None:
    if is_set:
        context.meta["aioprefetch.debug"] = True


def _named_texts(values: dict[str, Any]) -> list[tuple[str, str]]:
    named: Mapping[str, Any] = {name: values.pop(name) for name in _NAMED}
    return [(name, "true" if value is True else str(value)) for name, value in named.items() if value]


# --- completion -------------------------------------------------------------------------------------------------------

# The names that completion offers, and how long it looks for them.
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


add_completion_class(UrlBashComplete)
add_completion_class(WholeNamesFishComplete)


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
    """The buckets whose names begin with a text; empty if a bucket has exactly this name, or listing fails.

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


def place_argument(name: str, metavar: str, **options: Any) -> Callable[[Decorated], Decorated]:
    """An argument that is a place, or several."""
    return click.argument(name, metavar=metavar, shell_complete=complete_place, **options)
