"""Globs over whole paths: what they match, and the prefix that all matches share. Pure."""

from __future__ import annotations

import re

from aioprefetch.errors import InvalidArgument, InvalidType

# Alternatives in other globs, after the opening brace.
_ALTERNATIVES = re.compile(r"[^{}]*,[^{}]*\}")
_WILDCARD = re.compile(r"[*?\[]")
_SPECIAL = re.compile(r"[*?\[{]")
_ONE_CHARACTER = re.compile(r"\[([^!/])\]")


def wildcard_at(text: str, start: int = 0) -> int:
    """The position of the first wildcard from ``start`` on; the length of the pattern without any."""
    match = _WILDCARD.search(text, start)
    return len(text) if match is None else match.start()


def has_wildcard(text: str) -> bool:
    """Whether a text has a wildcard of a glob."""
    return wildcard_at(text) < len(text)


def literal_prefix(glob: str) -> str:
    """The longest prefix of every path that ``glob`` matches; the whole of a glob without wildcards."""
    return literal_part(glob)[0]


def is_literal(glob: str) -> bool:
    """Whether a glob matches exactly one path."""
    return literal_part(glob)[1] == len(glob)


def literal_glob(path: str) -> str:
    """The glob that matches exactly one path."""
    return _SPECIAL.sub(lambda match: f"[{match[0]}]", path)


def literal_part(glob: str) -> tuple[str, int]:
    """The prefix of all matches, and the position in the glob where it ends."""
    text, position = "", 0
    while True:
        end = wildcard_at(glob, position)
        text += glob[position:end]
        character = _ONE_CHARACTER.match(glob, end)
        if character is None:
            return text, end
        text, position = text + character[1], character.end()


_BRACES = re.compile(r"(?<!\[)\{((?:\[[^\]]*\]|[^{}\[])*,(?:\[[^\]]*\]|[^{}\[])*)\}")
_COMMA = re.compile(r",(?![^\[]*\])")


def alternatives(glob: str) -> list[str]:
    """The globs that one with alternatives in braces stands for; itself without any."""
    braces = _BRACES.search(glob)
    if braces is None:
        return [glob]
    before, after = glob[: braces.start()], glob[braces.end() :]
    return [one for part in _COMMA.split(braces[1]) for one in alternatives(f"{before}{part}{after}")]


def compile_glob(glob: str) -> re.Pattern[str]:
    """A glob over whole paths: ``*`` and ``?`` stay within a segment, ``**`` crosses them, ``[a-z]`` is a set.

    ``InvalidArgument`` for an invalid pattern, instead of a pattern that matches nothing: a ``[`` without its ``]``, or
    alternatives in braces. ``[[]`` and ``[{]`` stand for the characters themselves.
    """
    if not isinstance(glob, str):
        raise InvalidType(f"glob must be a string, not {glob!r}", operation="list")
    pattern = ""
    position = 0
    while position < len(glob):
        char = glob[position]
        position += 1
        if char == "*" and glob[position : position + 1] == "*":
            position += 1
            if glob[position : position + 1] == "/":  # ``**/`` also matches no directory at all.
                position += 1
                pattern += "(?:.*/)?"
            else:
                pattern += ".*"
        elif char == "*":
            pattern += "[^/]*"
        elif char == "?":
            pattern += "[^/]"
        elif char == "[":
            close = _end_of_set(glob, position)
            if close < 0:
                raise _no_glob(glob, "a [ without its ]; the character itself is [[]")
            negated = glob[position] == "!"
            # A lone ``-`` makes a range; two in a row are a set difference to come in ``re``, and literal here.
            inside = re.sub(r"(?<!\\-)\\-(?!\\-)", "-", re.escape(glob[position + negated : close]))
            pattern += f"[^/{inside}]" if negated else f"[{inside}]"
            position = close + 1
        elif char == "{" and _ALTERNATIVES.match(glob, position):
            raise _no_glob(glob, "there are no alternatives in braces: list once for each; the character itself is [{]")
        else:
            pattern += re.escape(char)
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise _no_glob(glob, error.msg) from None


def _no_glob(glob: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"glob={glob!r} cannot be understood: {why}", operation="list")


def _end_of_set(glob: str, position: int) -> int:
    """The end of the set whose inside begins at ``position``, or -1; its first character may be ``]``."""
    negated = glob[position : position + 1] == "!"
    return glob.find("]", position + negated + 1)
