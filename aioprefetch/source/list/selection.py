"""The keys of a store that belong to a source: below a prefix, and matching a glob. Pure."""

from __future__ import annotations

import re

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.listing import compile_glob, is_literal, literal_prefix
from aioprefetch.source.files import SourceFile, is_hidden
from aioprefetch.values import Entry

# The path of a file below a directory that a glob matches.
_IN_DIRECTORY = r"(?:(?:/[^/=]+=[^/]+)*/[^/]+)?"


def file_of(entry: Entry) -> SourceFile:
    """The file of an entry in a listing."""
    modified = entry.last_modified
    return SourceFile(
        entry.path,
        entry.size or 0,
        entry.etag,
        entry.version,
        None if modified is None else round(modified.timestamp() * 1000),
    )


def _pattern(glob: str) -> re.Pattern[str]:
    files = compile_glob(glob)
    if is_literal(glob):
        return files
    return re.compile(f"(?:{files.pattern}){_IN_DIRECTORY}", re.DOTALL)


class Selection:
    """Selects the files of a source. Its ``prefix`` is the longest one that covers all of them.

    ``prefix`` and ``glob`` are whole paths below the root of the operator. As in Spark, a glob that matches a directory
    selects the files in it and in its ``name=value`` directories, but in no other directories. Hidden files
    (``files.is_hidden``) are selected only with ``hidden_files``. Raises ``ConfigInvalid`` if prefix and glob exclude
    each other, as such a source would never find a file.
    """

    def __init__(self, prefix: str = "", glob: str | None = None, *, hidden_files: bool = False) -> None:
        self._hidden_files = hidden_files
        self._pattern = None if glob is None else _pattern(glob)
        literal = "" if glob is None else literal_prefix(glob)
        if not literal.startswith(prefix) and not prefix.startswith(literal):
            raise ConfigInvalid(
                f"nothing below {prefix!r} can match glob={glob!r}: a glob is of whole paths below the source's root",
                operation="list",
                path=prefix,
            )
        self.prefix = max(prefix, literal, key=len)

    def takes(self, path: str) -> bool:
        """Whether a path is a file of the source: it matches, and is not a directory or a directory marker."""
        if path.endswith("/") or (is_hidden(path) and not self._hidden_files):
            return False
        return self._pattern is None or self._pattern.fullmatch(path) is not None
