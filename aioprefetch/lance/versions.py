"""The versions of a dataset: the paths of their manifests, and the version a caller asks for by number, time or tag.

Two naming schemes are in use: the version, and the inverted version, 2^64 - 1 - version in 20 digits. With inverted
names a listing in the order of keys begins with the latest version, so that one page of it suffices.

A branch is a dataset of its own in ``tree/NAME``, whose manifests name the data files of the branches it came from; its
versions go on from the one where it began.

The time of a version is stated in its manifest, by the writer's clock; the store's own time of a
manifest is the time of the copy, where the dataset was copied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aioprefetch.accessor.path_hints import hint_at_path
from aioprefetch.errors import (
    ConfigInvalid,
    Error,
    InvalidArgument,
    InvalidType,
    NotFound,
    PermissionDenied,
    Unsupported,
    UntrustedMetadata,
)
from aioprefetch.lance.footer import MetadataBytes
from aioprefetch.lance.manifest import (
    MAIN_BRANCH,
    TRAILER,
    Directory,
    Manifest,
    committed_at,
    is_branch,
    is_reference,
    manifest_range,
    parse_manifest,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.ranges import OFFSET_MAX, at_least
from aioprefetch.scheduler.pinned_file import PinnedFile
from aioprefetch.values import Entry, ListRequest
from aioprefetch.verbs.arguments import Arguments, checked_path
from aioprefetch.verbs.listing import Pages

_NAME = re.compile(r"(\d{1,20})\.manifest")
_INVERTED_DIGITS = 20
_VERSION_MAX = (1 << 64) - 1
_HINT = "_versions/latest_version_hint.json"
_HINT_BYTES_MAX = 4096
# Who may not list a bucket of S3 is denied the objects that it does not have.
ABSENT = (NotFound, PermissionDenied)

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


async def list_versions(operator: Operator, base: str, *, until_latest: bool = False) -> list[DatasetVersion]:
    """All versions, oldest first, by one listing; with ``until_latest`` as many pages as the latest one needs."""
    is_ordered = until_latest and operator.capability.list_ordered
    request = ListRequest(path=checked_path(f"{base}_versions/", "list"))
    pages = Pages(operator.accessor, operator.runtime, request)
    listed: list[tuple[DatasetVersion, bool]] = []
    while not pages.finished and not (is_ordered and any(is_inverted for _, is_inverted in listed)):
        listed += filter(None, [version_of(entry, base) for entry in await pages.next()])
    return sorted((version for version, _ in listed), key=lambda version: version.version)


async def latest_version(operator: Operator, base: str) -> DatasetVersion | None:
    """The latest version, ``None`` without any. Where nothing can be listed, the hint of the dataset leads to it."""
    if not operator.capability.list:
        return await _latest_by_hint(operator, base)
    try:
        versions = await list_versions(operator, base, until_latest=True)
        return versions[-1] if versions else None
    except PermissionDenied:  # To read may be allowed all the same.
        latest = await _latest_by_hint(operator, base)
        if latest is None:
            raise
        return latest


def _no_versions(operator: Operator, base: str) -> Error:
    why = "there is no version of a Lance dataset"
    if not operator.capability.list:
        why = f"the store cannot list, and there is no {_HINT}; say version="
    return hint_at_path(NotFound(why, operation="open", path=base), operator.info)


async def _probe(operator: Operator, base: str, version: int) -> DatasetVersion:
    """A version, found under one of its possible names. ``NotFound`` if it does not exist."""
    for path in manifest_paths(base, version):
        with suppress(*ABSENT):
            return DatasetVersion(version=version, path=path, size=(await operator.stat(path)).size)
    raise NotFound(f"the dataset has no version {version}", operation="open", path=base)


async def _latest_by_hint(operator: Operator, base: str) -> DatasetVersion | None:
    """The version in the dataset's hint, or the last one after it; ``None`` without a hint."""
    path = base + _HINT
    try:
        hint = json.loads(await operator.read(path, size=_HINT_BYTES_MAX))["version"]
        if type(hint) is not int or not 0 < hint < _VERSION_MAX:
            raise ValueError(f"the hint says {hint!r}")
    except ABSENT:
        return None
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


# --- the version that a caller asks for -------------------------------------------------------------------------------

# A file of a tag holds some numbers, times and metadata of the user.
_TAG_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """A version by one of its names, the latest one without any; of a branch, or of the main one for ``None``.

    ``found`` is the latest one where it was looked for already.
    """

    number: int | None = None
    time: datetime | None = None
    tag: str | None = None
    branch: str | None = None
    found: DatasetVersion | None = None

    @property
    def argument(self) -> str:
        """The name of an argument that was given, empty if none was."""
        if self.tag is not None:
            return "tag"
        if self.branch is not None:
            return "branch"
        return "" if self.number is None and self.time is None else "version"

    def directory(self, root: str) -> str:
        """The directory of the versions of the branch, where ``root`` is the dataset's."""
        return root if self.branch is None else f"{root}tree/{self.branch}/"


def wanted_version(version: object, tag: str | None, branch: str | None, *, operation: str, path: str) -> WantedVersion:
    """Check the arguments of a call, without I/O.

    ``InvalidType`` and ``InvalidArgument`` for what names no version, ``ConfigInvalid`` for two of them.
    """
    if version is not None and tag is not None:
        raise ConfigInvalid("version= and tag= exclude each other", operation=operation, path=path)
    if tag is not None and branch is not None:
        raise ConfigInvalid(
            "tag= and branch= exclude each other: a tag names its branch", operation=operation, path=path
        )
    if tag is not None:
        return WantedVersion(tag=_checked_tag(tag, operation, path))
    name = None if branch is None else _checked_branch(branch, operation, path)
    if isinstance(version, datetime):
        return WantedVersion(time=Arguments(operation, path).time("version", version), branch=name)
    if isinstance(version, str):
        raise InvalidType(
            f"version must be a number or a datetime, not {version!r}; tag= takes the name of a tag",
            operation=operation,
            path=path,
        )
    if version is None:
        return WantedVersion(branch=name)
    return WantedVersion(number=at_least(1, version, "version", operation=operation, path=path), branch=name)


def _checked_tag(tag: str, operation: str, path: str) -> str:
    if not is_reference(tag) or tag[0] == ".":
        raise InvalidArgument(
            f"tag={tag!r} is not the name of a tag: letters, digits, '.', '-' and '_' are allowed",
            operation=operation,
            path=path,
        )
    return tag


def _checked_branch(branch: str, operation: str, path: str) -> str | None:
    """The name of a branch, ``None`` for the main one."""
    if not is_branch(branch):
        raise InvalidArgument(
            f"branch={branch!r} is not the name of a branch: letters, digits, '.', '-', '_', and '/' between them are"
            " allowed",
            operation=operation,
            path=path,
        )
    return None if branch == MAIN_BRANCH else branch


async def resolved(operator: Operator, root: str, wanted: WantedVersion) -> WantedVersion:
    """The number and the branch of a tag; others as they are, if there is such a branch. ``root`` is the dataset's."""
    if wanted.tag is not None:
        return await _tagged_version(operator, root, wanted.tag)
    if wanted.branch is not None:
        try:
            await operator.stat(_reference("branches", root, wanted.branch))
        except NotFound as error:
            raise NotFound(f"the dataset has no branch {wanted.branch!r}", path=root) from error
    return wanted


def _reference(kind: str, root: str, name: str) -> str:
    """The path of the file of a tag or a branch."""
    from urllib.parse import quote

    return f"{root}_refs/{kind}/{quote(name, safe='')}.json"


async def find_manifest(operator: Operator, root: str, wanted: WantedVersion) -> Manifest:
    """The manifest of a version that was resolved. ``NotFound`` without such a version."""
    base = Directory(wanted.directory(root), root)
    if wanted.time is not None:
        return await _manifest_at(operator, base, wanted.time)
    if wanted.number is not None:
        return await _manifest_of(operator, base, wanted.number)
    listed = wanted.found or await latest_version(operator, base.path)
    if listed is None:
        raise _no_versions(operator, base.path)
    return _parsed(await _manifest_bytes(operator, listed), base, listed)


async def _manifest_bytes(operator: Operator, listed: DatasetVersion) -> bytes | memoryview:
    """The bytes of a manifest, from its length on."""
    pinned = await PinnedFile.open(operator.accessor(), operator.runtime(), listed.path, known_size=listed.size)
    metadata = MetadataBytes(pinned)
    trailer = await metadata.read(max(0, pinned.size - TRAILER.size), pinned.size)
    start, end = manifest_range(trailer, pinned.size, listed.path)
    return await metadata.read(start, end)


def _parsed(data: bytes | memoryview, base: Directory, listed: DatasetVersion) -> Manifest:
    manifest = parse_manifest(data, base, listed.path)
    if manifest.version != listed.version:
        raise UntrustedMetadata(
            f"the manifest is of version {manifest.version}, its name of {listed.version}",
            path=listed.path,
        )
    return manifest


async def _manifest_of(operator: Operator, base: Directory, version: int) -> Manifest:
    """The manifest of a version, found under one of its possible names."""
    for path, absent in zip(manifest_paths(base.path, version), (ABSENT, (NotFound,)), strict=True):
        listed = DatasetVersion(version=version, path=path)
        with suppress(*absent):
            return _parsed(await _manifest_bytes(operator, listed), base, listed)
    raise NotFound(f"the dataset has no version {version}", path=base.path)


async def _manifest_at(operator: Operator, base: Directory, time: datetime) -> Manifest:
    """The manifest of the latest version written at ``time`` or before: a listing, and a search by halves.

    Versions are written one after the other, so that their times ascend with their numbers.
    """
    if not operator.capability.list:
        raise Unsupported("the store cannot list, so that no version is found by its time; say version=NUMBER")
    versions = await list_versions(operator, base.path)
    if not versions:
        raise _no_versions(operator, base.path)
    manifest = await _latest_until(operator, versions, time)
    if manifest is None:
        raise NotFound(f"no version of the dataset was written at {time} or before", path=base.path)
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


async def _tagged_version(operator: Operator, root: str, tag: str) -> WantedVersion:
    """The version that a tag names, from ``_refs/tags/NAME.json``."""
    path = _reference("tags", root, tag)
    try:
        contents: Any = json.loads(await operator.read(path, size=_TAG_BYTES_MAX))
        version, branch = contents["version"], contents.get("branch")
        if type(version) is not int or not 0 < version <= OFFSET_MAX:
            raise ValueError(f"its version is {version!r}")
        if branch is not None and not (isinstance(branch, str) and is_branch(branch)):
            raise ValueError(f"its branch is {branch!r}")
    except NotFound as error:
        raise NotFound(f"the dataset has no tag {tag!r}", path=root) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, Error):
            raise
        raise UntrustedMetadata(f"the file of the tag {tag!r} is damaged: {error}", path=path) from error
    return WantedVersion(number=version, branch=None if branch == MAIN_BRANCH else branch)
