"""Metadata of a stream, stored beside its state at its first start: the schema, and settings that must not change.

Each is one file with a checksum, written once by the first start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aioprefetch.errors import AlreadyExists, ConditionNotMatch, Error, NotFound, StateConflict, UntrustedMetadata
from aioprefetch.operator.listing import literal_glob
from aioprefetch.operator.operator import Operator
from aioprefetch.source.state.checksummed_json import seal, unseal
from aioprefetch.spark.operators import locate
from aioprefetch.spark.options import OPTIONS
from aioprefetch.spark.settings import SourceSettings, with_location
from aioprefetch.spark.source_url import SourceUrl

SCHEMA_NAME = "schema.json"
STREAM_NAME = "stream.json"
VERSION = 1

# How bytes become records: the rest of a half read file must be read in the same way.
_LASTING = (
    *("format", "compression", "encoding", "header", "delimiter", "quote", "escape", "null_value", "multi_line"),
    *("line_separator", "time_zone"),
)
# The first of several names of an option.
_NAMES = {option.target: option.name for option in reversed([*OPTIONS.values()]) if option.group == "format"}


async def read_kept(store: Operator, name: str, fields: frozenset[str]) -> dict[str, Any] | None:
    """The fields of a file; ``None`` if there is none. ``UntrustedMetadata`` if it is damaged, or of another format."""
    try:
        data = await store.read(name)
    except NotFound:
        return None
    body: Any = unseal(data, path=name)[0]
    is_whole = isinstance(body, dict) and fields <= body.keys() and isinstance(body.get("format", {}), dict)
    if not is_whole or type(body.get("v")) is not int or body["v"] != VERSION:
        raise UntrustedMetadata(
            f"what was kept with the state at {store.info.url} cannot be read: it is not of this format",
            operation="read_state",
            path=name,
        )
    kept: dict[str, Any] = body
    return kept


async def keep(store: Operator, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Write a file unless it exists. Returns the fields that are stored then."""
    body = {"v": VERSION, **body}
    conditional = store.capability.write_if_not_exists
    try:
        await store.write(name, seal(body)[0], if_not_exists=conditional)
    except (AlreadyExists, ConditionNotMatch):
        pass
    except Error as error:
        # The response was lost, perhaps not the file.
        if error.status == "permanent" or await read_kept(store, name, frozenset(body)) is None:
            raise
    return await read_kept(store, name, frozenset(body)) or body


async def resolved(settings: SourceSettings, store: Operator) -> SourceSettings:
    """The settings with the location of the first start, or, before that, by a ``stat`` of the store.

    ``StateConflict`` names an option that has changed since the first start.
    """
    kept = await read_kept(store, STREAM_NAME, frozenset({"url", "object", "format"}))
    if kept is None or kept["url"] != settings.url:  # The state itself refuses another source.
        return with_location(settings, await locate(settings))
    _check_formats(kept["format"], settings, store)
    location = settings.location
    if kept["object"] and location.name is not None and location.parent is not None:
        return with_location(settings, SourceUrl(location.parent, literal_glob(location.name)))
    return settings


async def keep_stream(settings: SourceSettings, store: Operator, *, original: SourceSettings) -> None:
    """Store the settings that must not change (``resolved`` from the ``original`` ones), once the state is open."""
    body = {"url": original.url, "object": settings.location != original.location, "format": _formats(settings)}
    if await read_kept(store, STREAM_NAME, frozenset(body)) is None:
        kept = await keep(store, STREAM_NAME, body)
        _check_formats(kept["format"], settings, store)


def _formats(settings: SourceSettings) -> dict[str, Any]:
    formats = replace(settings.formats, time_zone=settings.formats.time_zone or "UTC")
    return {_NAMES[target]: getattr(formats, target) for target in _LASTING}


def _check_formats(kept: dict[str, Any], settings: SourceSettings, store: Operator) -> None:
    now = _formats(settings)
    changed = [name for name in now if name in kept and kept[name] != now[name]]
    if changed:
        what = ", ".join(f"{name} was {kept[name]!r} and is {now[name]!r}" for name in changed)
        raise StateConflict(
            f"options have changed since the stream with the state at {store.info.url} started: {what}. Files may be "
            "half read: put the options back, or start again with another stateLocation and another checkpoint",
            operation="read_state",
            path=STREAM_NAME,
        )
