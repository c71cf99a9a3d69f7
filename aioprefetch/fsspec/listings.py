"""Entries of a listing as fsspec's dictionaries, and listings that are kept for a while."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from aioprefetch.values import Entry, Metadata

Info = dict[str, Any]


class Listing(list[Info]):
    """The entries of one directory, found by their names, of which an object and a directory may have the same."""

    def __init__(self, entries: Iterable[Info]) -> None:
        super().__init__(entries)
        self._files: dict[str, Info] = {info["name"]: info for info in self if info["type"] == "file"}
        self._directories: dict[str, Info] = {info["name"]: info for info in self if info["type"] == "directory"}

    def find(self, name: str) -> Info | None:
        """The entry of that name: of the object, if there is one."""
        return self._files.get(name) or self._directories.get(name)

    def has_directory(self, name: str) -> bool:
        """Whether there is a directory of that name."""
        return name in self._directories


def info_of(base: str, found: Entry | Metadata) -> Info:
    """An entry or metadata in fsspec's form, under s3fs's names. ``base`` stands before each path of a store."""
    if found.is_directory:
        return directory_info(base + found.path)
    info: Info = {"name": base + found.path, "size": found.size, "type": "file"}
    if found.etag is not None:
        info["ETag"] = found.etag if found.etag.startswith("W/") else f'"{found.etag}"'
    if found.last_modified is not None:
        info["LastModified"] = found.last_modified
    if found.version is not None:
        info["VersionId"] = found.version
    if isinstance(found, Metadata) and found.content_type is not None:
        info["ContentType"] = found.content_type
    return info


def version_info(base: str, found: Entry) -> Info:
    """A version of an object, which its name ends with, as in s3fs."""
    info = info_of(base, found)
    if found.version not in (None, "null"):
        info["name"] += f"?versionId={found.version}"
    return {**info, "IsLatest": found.is_latest, "IsDeleteMarker": found.is_delete_marker}


def directory_info(name: str) -> Info:
    """A directory."""
    return {"name": name.rstrip("/") or name, "size": 0, "type": "directory"}


def parents_of(name: str, root: str) -> Iterable[str]:
    """The directories above ``name``, up to and with ``root``, the nearest first."""
    while len(name) > len(root):
        above, slash, _ = name.rpartition("/")
        if not slash or len(above) < len(root):
            return
        yield above
        name = above


def grouped(files: Iterable[Info], directories: Iterable[str], root: str) -> dict[str, list[Info]]:
    """The entries of each directory at or below ``root``, made of everything below it."""
    below: dict[str, list[Info]] = {root: []}

    def add(directory: str) -> list[Info]:
        if directory not in below:
            below[directory] = []
            if directory != root:
                add(directory.rpartition("/")[0]).append(directory_info(directory))
        return below[directory]

    for info in files:
        add(info["name"].rpartition("/")[0]).append(info)
    for directory in directories:
        add(directory)
    return below


def digest_of(info: Info) -> str:
    """A digest of what tells one version of an object from another."""
    facts = [str(info.get(name)) for name in ("name", "size", "ETag", "VersionId", "LastModified")]
    return hashlib.blake2b("\n".join(facts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
