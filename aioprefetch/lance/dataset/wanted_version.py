"""The version of a dataset that a caller asks for: its number, a time or a tag; the latest one otherwise.

The time of a version is the one that its manifest states, which the writer's clock gave; the store's own time of a
manifest is that of a copy, where the dataset was copied.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from aioprefetch.errors import (
    ConfigInvalid,
    Error,
    InvalidArgument,
    InvalidType,
    NotFound,
    Unsupported,
    UntrustedMetadata,
)
from aioprefetch.lance.dataset.manifest import TRAILER, Manifest, committed_at, manifest_range, parse_manifest
from aioprefetch.lance.dataset.versions import DatasetVersion, latest_version, list_versions, manifest_paths
from aioprefetch.lance.footer import MetadataBytes
from aioprefetch.operator.arguments import Arguments
from aioprefetch.ranges import OFFSET_MAX, at_least
from aioprefetch.scheduler.pinned_file import PinnedFile

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator

# A file of a tag holds some numbers, times and metadata of the user.
_TAG_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """A version by one of its names; the latest one without any."""

    number: int | None = None
    time: datetime | None = None
    tag: str | None = None

    @property
    def argument(self) -> str:
        """The name of the argument that was given, empty if none was."""
        return "tag" if self.tag is not None else "" if self.number is None and self.time is None else "version"


def wanted_version(version: object, tag: object, *, operation: str, path: str) -> WantedVersion:
    """Check the arguments of a call, without I/O.

    ``InvalidType`` and ``InvalidArgument`` for what names no version, ``ConfigInvalid`` for two of them.
    """
    if version is not None and tag is not None:
        raise ConfigInvalid("version= and tag= exclude each other", operation=operation, path=path)
    if tag is not None:
        return WantedVersion(tag=_checked_tag(tag, operation, path))
    if isinstance(version, datetime):
        return WantedVersion(time=Arguments(operation, path).time("version", version))
    if isinstance(version, str):
        raise InvalidType(
            f"version must be a number or a datetime, not {version!r}; tag= takes the name of a tag",
            operation=operation,
            path=path,
        )
    if version is None:
        return WantedVersion()
    return WantedVersion(number=at_least(1, version, "version", operation=operation, path=path))


def _checked_tag(tag: object, operation: str, path: str) -> str:
    """A name that Lance allows: letters, digits, ``.``, ``-`` and ``_``."""
    if not isinstance(tag, str):
        raise InvalidType(f"tag must be a name, not {tag!r}", operation=operation, path=path)
    if not tag or not all(letter.isalnum() or letter in ".-_" for letter in tag) or tag[0] == "." or ".." in tag:
        raise InvalidArgument(
            f"tag={tag!r} is not the name of a tag: letters, digits, '.', '-' and '_' are allowed",
            operation=operation,
            path=path,
        )
    return tag


async def find_manifest(operator: Operator, base: str, wanted: WantedVersion) -> Manifest:
    """The manifest of a version of the dataset in the directory ``base``. ``NotFound`` without such a version."""
    if wanted.tag is not None:
        return await _manifest_of(operator, base, await _tagged_version(operator, base, wanted.tag))
    if wanted.time is not None:
        return await _manifest_at(operator, base, wanted.time)
    if wanted.number is not None:
        return await _manifest_of(operator, base, wanted.number)
    listed = await latest_version(operator, base)
    return _parsed(await _manifest_bytes(operator, listed), base, listed)


async def _manifest_bytes(operator: Operator, listed: DatasetVersion) -> bytes | memoryview:
    """The bytes of a manifest, from its length on."""
    pinned = await PinnedFile.open(operator.accessor(), operator.runtime(), listed.path, known_size=listed.size)
    metadata = MetadataBytes(pinned)
    trailer = await metadata.read(max(0, pinned.size - TRAILER.size), pinned.size)
    start, end = manifest_range(trailer, pinned.size, listed.path)
    return await metadata.read(start, end)


def _parsed(data: bytes | memoryview, base: str, listed: DatasetVersion) -> Manifest:
    manifest = parse_manifest(data, base, listed.path)
    if manifest.version != listed.version:
        raise UntrustedMetadata(
            f"the manifest is of version {manifest.version}, its name of {listed.version}",
            path=listed.path,
        )
    return manifest


async def _manifest_of(operator: Operator, base: str, version: int) -> Manifest:
    """The manifest of a version, found under one of its possible names."""
    for path in manifest_paths(base, version):
        listed = DatasetVersion(version=version, path=path)
        with suppress(NotFound):
            return _parsed(await _manifest_bytes(operator, listed), base, listed)
    raise NotFound(f"the dataset has no version {version}", path=base)


async def _manifest_at(operator: Operator, base: str, time: datetime) -> Manifest:
    """The manifest of the latest version written at ``time`` or before: a listing, and a search by halves.

    Versions are written one after the other, so that their times ascend with their numbers.
    """
    if not operator.capability.list:
        raise Unsupported("the store cannot list, so that no version is found by its time; say version=NUMBER")
    versions = await list_versions(operator, base)
    if not versions:
        await latest_version(operator, base)  # It raises the error of a dataset without versions.
    manifest = await _latest_until(operator, versions, time)
    if manifest is None:
        raise NotFound(f"no version of the dataset was written at {time} or before", path=base)
    data, listed = manifest
    return _parsed(data, base, listed)


async def _latest_until(
    operator: Operator, versions: Sequence[DatasetVersion], time: datetime
) -> tuple[bytes | memoryview, DatasetVersion] | None:
    latest: tuple[bytes | memoryview, DatasetVersion] | None = None
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        listed = versions[middle]
        data = await _manifest_bytes(operator, listed)
        written = committed_at(data, listed.path)
        if written is None or written <= time:
            latest, low = (data, listed), middle + 1
        else:
            high = middle
    return latest


async def _tagged_version(operator: Operator, base: str, tag: str) -> int:
    """The version that a tag names, from ``_refs/tags/NAME.json``."""
    from urllib.parse import quote

    path = f"{base}_refs/tags/{quote(tag, safe='')}.json"
    try:
        contents: Any = json.loads(await operator.read(path, size=_TAG_BYTES_MAX))
        version, branch = contents["version"], contents.get("branch")
        if type(version) is not int or not 0 < version <= OFFSET_MAX:
            raise ValueError(f"its version is {version!r}")
    except NotFound as error:
        raise NotFound(f"the dataset has no tag {tag!r}", path=base) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, Error):
            raise
        raise UntrustedMetadata(f"the file of the tag {tag!r} is damaged: {error}", path=path) from error
    if branch is not None:
        raise Unsupported(f"the tag {tag!r} is of the branch {branch!r}; branches are not supported", path=path)
    return version
