"""What a caller knows of an object from a listing: any object or mapping with a path, read by the names in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aioprefetch.errors import ConfigInvalid, InvalidType
from aioprefetch.ranges import checked_int

# The names of Metadata and Entry, then those of Hadoop, boto3, fsspec, obstore and pyarrow.
_PATH = ("path", "name", "Key", "key")
_SIZE = ("size", "length", "len", "Size", "ContentLength")
_ETAG = ("etag", "e_tag", "ETag")
_VERSION = ("version", "version_id", "VersionId")
_KIND = ("kind", "type")
_DIRECTORY = ("is_directory", "is_dir", "isdir")


@dataclass(frozen=True, slots=True)
class KnownObject:
    """What a status tells. ``size`` is in bytes; ``None`` where it tells nothing."""

    size: int | None = None
    etag: str | None = None
    version: str | None = None
    is_directory: bool = False

    def keywords(self) -> dict[str, Any]:
        """As options of ``operator.reader()``."""
        told = {"size": self.size, "etag": self.etag, "version": self.version}
        return {name: value for name, value in told.items() if value is not None}


def known_object(status: object | None, *, path: str) -> KnownObject:
    """Read a status of the object at ``path``.

    The last elements of the two paths must be equal and nothing else of them is compared: a mount point or a wrapping
    file system legally has another scheme, host and parent. ``ConfigInvalid`` when they differ, ``InvalidType`` for
    what has no path or a size that is no integer.
    """
    if status is None:
        return KnownObject()
    where = _field(status, _PATH)
    if where is None:
        raise InvalidType(
            f"a status needs a path and a size, as Metadata and Entry have them; {type(status).__name__} has no path",
            operation="open_file",
            path=path,
        )
    if _last_element(str(where)) != _last_element(path):
        raise ConfigInvalid(
            f"with_status() was given a status of {str(where)!r}, whose last element is not that of {path!r}",
            operation="open_file",
            path=path,
        )
    size = _field(status, _SIZE)
    if size is not None:
        size = checked_int(size, "the status's size", operation="open_file", path=path)
    return KnownObject(
        size=None if size is None or size < 0 else size,
        etag=_text(_field(status, _ETAG)),
        version=_text(_field(status, _VERSION)),
        is_directory=_is_directory(status, str(where)),
    )


def _field(status: object, names: tuple[str, ...]) -> Any:
    """The first of the names that holds a value. Methods hold none: a path of pathlib has more names than meanings."""
    for name in names:
        value = status.get(name) if isinstance(status, Mapping) else getattr(status, name, None)
        if value is not None and not callable(value):
            return value
    return None


def _text(value: object) -> str | None:
    """Foreign kinds of versions tell nothing here."""
    return value if isinstance(value, str) and value else None


def _is_directory(status: object, where: str) -> bool:
    kind = str(_field(status, _KIND) or "").lower()  # pyarrow's is an enumeration, "FileType.Directory"
    return _field(status, _DIRECTORY) is True or kind.endswith("directory") or where.endswith("/")


def _last_element(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
