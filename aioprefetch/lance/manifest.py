"""The manifest, which describes one version of a dataset."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.schema import FIELD_TABLE, Field, build_fields
from aioprefetch.lance.wire import FieldRule, MessageTable, ParsedMessage, message, parse, uint
from aioprefetch.ranges import OFFSET_MAX, Range

TRAILER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_MAGIC = b"LANC"

# Supported or irrelevant reader flags: deletion files, stable row ids, two flags for writers, base paths (refused if a
# file uses one), and files of several versions (256: pylance sets it when it appends a file of another version than
# the dataset's). With any other flag the rows would be wrong.
_STABLE_ROW_IDS = 2
_READER_FLAGS_KNOWN = 1 | _STABLE_ROW_IDS | 4 | 8 | 16 | 256

_DATA_FILE = MessageTable(
    "DataFile",
    {
        1: FieldRule("path", "text"),
        2: FieldRule("fields", "int", repeated=True),
        3: FieldRule("column_indices", "int", repeated=True),
        4: uint("major"),
        6: uint("size"),
        7: uint("base_id"),
    },
)
_DELETION_FILE = MessageTable(
    "DeletionFile", {1: uint("kind"), 2: uint("read_version"), 3: uint("id"), 4: uint("rows"), 7: uint("base_id")}
)
_FRAGMENT = MessageTable(
    "DataFragment",
    {
        1: uint("id"),
        2: message("files", _DATA_FILE, repeated=True),
        3: message("deletion_file", _DELETION_FILE),
        4: uint("rows"),
        5: FieldRule("row_ids", "bytes"),
    },
)
_DATA_FORMAT = MessageTable("DataStorageFormat", {1: FieldRule("file_format", "text"), 2: FieldRule("version", "text")})
_TIMESTAMP = MessageTable("Timestamp", {1: FieldRule("seconds", "int"), 2: FieldRule("nanos", "int")})
_BASE_PATH = MessageTable(
    "BasePath",
    {1: uint("id"), 2: FieldRule("name", "text"), 3: FieldRule("is_dataset", "bool"), 4: FieldRule("path", "text")},
)
_MANIFEST = MessageTable(
    "Manifest",
    {
        1: message("fields", FIELD_TABLE, repeated=True),
        2: message("fragments", _FRAGMENT, repeated=True),
        3: uint("version"),
        5: FieldRule("schema_metadata", "map"),
        7: message("timestamp", _TIMESTAMP),
        9: uint("reader_flags"),
        15: message("data_format", _DATA_FORMAT),
        18: message("bases", _BASE_PATH, repeated=True),
    },
)
_COMMIT = MessageTable("Manifest", {7: message("timestamp", _TIMESTAMP)})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# pylance's name of the branch that a dataset begins with.
MAIN_BRANCH = "main"


def is_reference(text: str) -> bool:
    """Whether Lance allows a text as a part of the name of a tag or a branch."""
    return text not in ("", ".") and ".." not in text and all(letter.isalnum() or letter in ".-_" for letter in text)


def is_branch(text: str) -> bool:
    """Whether Lance allows a text as the name of a branch."""
    return all(map(is_reference, text.split("/")))


@dataclass(frozen=True, slots=True)
class Directory:
    """The directory of a branch, and the root of its dataset, which is the same for the main branch.

    Both are empty or end with ``/``.
    """

    path: str
    root: str

    def of_bases(self, bases: Sequence[ParsedMessage]) -> Mapping[int, str]:
        """The directories of the bases of a manifest that lie in this dataset, by their numbers.

        The manifest of a branch names the URL of the dataset where it was written. The dataset may have moved since,
        so that only the places below it count: the base without a name is the dataset, others are its branches.
        With several of the first kind (a branch of a shallow clone) it is unknown which of them is the dataset.
        """
        datasets = [base for base in bases if base.get("is_dataset") and not base.get("name")]
        if self.path == self.root or len(datasets) != 1:
            return {}
        url = datasets[0].get("path", "").rstrip("/")
        places = {datasets[0].get("id", 0): self.root}
        for base in bases:
            name = base.get("name", "")
            is_below = base.get("path", "").rstrip("/") == f"{url}/tree/{name}"
            if is_branch(name) and base.get("is_dataset") and is_below:
                places[base.get("id", 0)] = f"{self.root}tree/{name}/"
        return places


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a fragment. ``columns`` maps field ids to columns of the file. ``size`` is in bytes, if stated."""

    path: str
    columns: Mapping[int, int]
    size: int | None


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """The file with a fragment's deleted rows. ``rows`` is their number; ``None`` if the manifest does not state it."""

    path: str
    is_bitmap: bool
    rows: int | None


@dataclass(frozen=True, slots=True)
class Fragment:
    """Some rows of a dataset, in one or more files that hold different columns. ``rows`` includes deleted rows.

    ``row_ids`` are the stable ids of the rows as in the manifest, empty if they are elsewhere; ``None`` if the dataset
    has none.
    """

    id: int
    rows: int
    files: tuple[DataFile, ...]
    deletion_file: DeletionFile | None
    row_ids: bytes | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a dataset: its fields, metadata and fragments.

    Fields have no columns, since each file has its own.

    ``committed`` is the time of the commit in UTC, to the microsecond.
    """

    version: int
    fields: tuple[Field, ...]
    schema_metadata: Mapping[str, bytes]
    fragments: tuple[Fragment, ...]
    committed: datetime | None


def manifest_range(trailer: bytes | memoryview, size: int, path: str) -> Range:
    """The start and the end of the manifest in its file of ``size`` bytes; the manifest begins with its length."""
    if len(trailer) < TRAILER.size:
        raise UntrustedMetadata(f"a file of {size} bytes is not a manifest", path=path)
    position, _, _, magic = TRAILER.unpack(trailer[-TRAILER.size :])
    if magic != _MAGIC:
        raise UntrustedMetadata("no manifest: its last four bytes are not LANC", path=path)
    end = size - TRAILER.size
    if position + _LENGTH.size > end:
        raise UntrustedMetadata(f"the manifest is said to begin at {position} of {size} bytes", path=path)
    return position, end


def parse_manifest(data: bytes | memoryview, base: Directory, path: str) -> Manifest:
    """Parse a manifest, which begins with its length.

    ``UntrustedMetadata`` for a damaged manifest; ``Unsupported`` for unknown features.
    """
    parsed = parse(_MANIFEST, _message(data, path), path=path)
    flags = parsed.get("reader_flags", 0)
    if unknown := flags & ~_READER_FLAGS_KNOWN:
        raise Unsupported(f"the dataset asks readers for features with the flags {unknown:#x}", path=path)
    data_format = parsed.get("data_format", {})
    _check_format(data_format.get("file_format", "lance"), data_format.get("version", "2.0"), path)
    has_ids = bool(flags & _STABLE_ROW_IDS)
    places = _Places(base.path, base.of_bases(parsed.get("bases", ())), path)
    fragments = tuple(_fragment(fragment, places, path, has_ids=has_ids) for fragment in parsed.get("fragments", ()))
    return Manifest(
        version=parsed.get("version", 0),
        fields=build_fields(parsed.get("fields", ()), path=path),
        schema_metadata=parsed.get("schema_metadata", {}),
        fragments=fragments,
        committed=_committed(parsed, path),
    )


def committed_at(data: bytes | memoryview, path: str) -> datetime | None:
    """The time of the commit that a manifest states, even if ``parse_manifest`` refuses its features."""
    return _committed(parse(_COMMIT, _message(data, path), path=path), path)


def _message(data: bytes | memoryview, path: str) -> bytes | memoryview:
    (length,) = _LENGTH.unpack(data[: _LENGTH.size])
    if length > len(data) - _LENGTH.size:
        raise UntrustedMetadata(f"the manifest claims {length} bytes, more than its file has", path=path)
    return data[_LENGTH.size : _LENGTH.size + length]


def _committed(parsed: ParsedMessage, path: str) -> datetime | None:
    if (stamp := parsed.get("timestamp")) is None:
        return None
    try:
        return _EPOCH + timedelta(seconds=stamp.get("seconds", 0), microseconds=stamp.get("nanos", 0) // 1000)
    except OverflowError as error:
        raise UntrustedMetadata(f"the manifest claims an impossible time: {error}", path=path) from error


@dataclass(frozen=True, slots=True)
class _Places:
    """The directory of a version, and other directories with files of it, by the numbers of their bases."""

    base: str
    others: Mapping[int, str]
    path: str

    def of(self, parsed: ParsedMessage, what: str) -> str:
        """The directory with the file that a message describes."""
        if "base_id" not in parsed:
            return self.base
        if (place := self.others.get(parsed["base_id"])) is None:
            raise Unsupported(f"{what} lies outside the dataset's directory, which is not supported", path=self.path)
        return place


def _check_format(name: str, version: str, path: str) -> None:
    if name != "lance" or version not in ("2.0", "2.1", "2.2"):
        raise Unsupported(
            f"data files of format {name!r} {version!r} are not supported; lance 2.0 to 2.2 are", path=path
        )


def _fragment(parsed: ParsedMessage, places: _Places, path: str, *, has_ids: bool) -> Fragment:
    identity, rows = parsed.get("id", 0), parsed.get("rows", 0)
    files = tuple(_data_file(file, places, path) for file in parsed.get("files", ()))
    if rows > OFFSET_MAX:
        raise UntrustedMetadata(f"fragment {identity} claims {rows} rows", path=path)
    if files and not rows:
        raise Unsupported(f"fragment {identity} does not say how many rows it has", path=path)
    deletion = parsed.get("deletion_file")
    return Fragment(
        identity,
        rows,
        files,
        None if deletion is None else _deletion(deletion, identity, rows, places, path),
        parsed.get("row_ids", b"") if has_ids else None,
    )


def _data_file(parsed: ParsedMessage, places: _Places, path: str) -> DataFile:
    name = parsed.get("path", "")
    base = places.of(parsed, name)
    if not name or name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        raise UntrustedMetadata(f"a data file cannot be named {name!r}", path=path)
    fields, indices = parsed.get("fields", ()), parsed.get("column_indices", ())
    if not indices and "major" not in parsed:  # As the manifests of before 2024 have it.
        _check_format("lance", "0.1", path)
    if len(fields) != len(indices):
        raise UntrustedMetadata(f"{name} has {len(fields)} fields and {len(indices)} column indices", path=path)
    # A negative id marks a field that was moved to another file of the fragment, a negative index a missing column.
    columns = {field_id: index for field_id, index in zip(fields, indices, strict=True) if field_id >= 0 and index >= 0}
    return DataFile(f"{base}data/{name}", columns, parsed.get("size") or None)


def _deletion(parsed: ParsedMessage, fragment: int, rows: int, places: _Places, path: str) -> DeletionFile:
    kind, count = parsed.get("kind", 0), parsed.get("rows", 0)
    if kind > 1:
        raise Unsupported(f"deletion files of kind {kind} are not supported", path=path)
    base = places.of(parsed, "a deletion file")
    if count > rows:
        raise UntrustedMetadata(f"{count} of {rows} rows of fragment {fragment} are said to be deleted", path=path)
    name = f"{fragment}-{parsed.get('read_version', 0)}-{parsed.get('id', 0)}.{'bin' if kind else 'arrow'}"
    return DeletionFile(f"{base}_deletions/{name}", kind == 1, count or None)
