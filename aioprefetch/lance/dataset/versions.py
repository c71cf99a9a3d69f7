"""The versions of a dataset, and the paths of their manifests.

Two naming schemes are in use: the version, and the inverted version, 2^64 - 1 - version in 20 digits. With inverted
names a listing in the order of keys begins with the latest version, so that one page of it suffices.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from aioprefetch.errors import Error, NotFound, Unsupported
from aioprefetch.layers.error_context import hint_at_path
from aioprefetch.operator.listing import list_literally
from aioprefetch.values import Entry

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator

_NAME = re.compile(r"(\d{1,20})\.manifest")
_INVERTED_DIGITS = 20
_VERSION_MAX = (1 << 64) - 1
_HINT_BYTES_MAX = 4096

# The maximum number of versions after the hint that are probed in a store without listing, by one request each.
_PROBES_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetVersion:
    """One version: its number, and the path of its manifest, with the manifest's size in bytes and time, if known."""

    version: int
    path: str
    size: int | None = None
    last_modified: datetime | None = None


def manifest_paths(base: str, version: int) -> tuple[str, str]:
    """The possible paths of the manifest of a version, the usual one first."""
    return f"{base}_versions/{_VERSION_MAX - version:020d}.manifest", f"{base}_versions/{version}.manifest"


def version_of(entry: Entry, base: str) -> tuple[DatasetVersion, bool] | None:
    """The version of a listed file, and whether its name is inverted; ``None`` for other files."""
    match = _NAME.fullmatch(entry.path.removeprefix(f"{base}_versions/"))
    if match is None or entry.is_directory:
        return None
    number = int(match[1])
    is_inverted = len(match[1]) == _INVERTED_DIGITS
    if number > _VERSION_MAX:
        return None
    version = _VERSION_MAX - number if is_inverted else number
    entry_version = DatasetVersion(version=version, path=entry.path, size=entry.size, last_modified=entry.last_modified)
    return entry_version, is_inverted


async def list_versions(operator: Operator, base: str) -> list[DatasetVersion]:
    """All versions, oldest first, by one listing."""
    async with list_literally(operator, f"{base}_versions/") as entries:
        versions = [version_of(entry, base) async for entry in entries]
    return sorted((listed[0] for listed in versions if listed is not None), key=lambda listed: listed.version)


async def latest_version(operator: Operator, base: str) -> DatasetVersion:
    """The latest version, which is the first in the listing if names are inverted. ``NotFound`` without any version."""
    if not operator.capability.list:
        return await _latest_by_hint(operator, base)
    latest: DatasetVersion | None = None
    async with list_literally(operator, f"{base}_versions/") as entries:
        async for entry in entries:
            listed = version_of(entry, base)
            if listed is None:
                continue
            if latest is None or listed[0].version > latest.version:
                latest = listed[0]
            if listed[1]:
                break
    if latest is None:
        error = NotFound("there is no version of a Lance dataset", operation="open", path=base)
        raise hint_at_path(error, operator.info)
    return latest


async def _probe(operator: Operator, base: str, version: int) -> DatasetVersion:
    """A version, found under one of its possible names. ``NotFound`` if it does not exist."""
    for path in manifest_paths(base, version):
        try:
            size = (await operator.stat(path)).size
        except NotFound:
            continue
        return DatasetVersion(version=version, path=path, size=size)
    raise NotFound(f"the dataset has no version {version}", operation="open", path=base)


async def _latest_by_hint(operator: Operator, base: str) -> DatasetVersion:
    """The latest version in a store without listing: the version in the dataset's hint, or the last one after it."""
    path = f"{base}_versions/latest_version_hint.json"
    try:
        hint = json.loads(await operator.read(path, size=_HINT_BYTES_MAX))["version"]
        if type(hint) is not int or not 0 < hint < _VERSION_MAX:
            raise ValueError(f"the hint says {hint!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, Error):
            raise
        raise Unsupported(
            f"the store cannot list, and {path} names no version ({error}); say version=", operation="open", path=base
        ) from error
    latest = await _probe(operator, base, hint)
    for version in range(hint + 1, hint + _PROBES_MAX):
        try:
            latest = await _probe(operator, base, version)
        except NotFound:
            break
    return latest
