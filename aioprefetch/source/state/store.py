"""The objects of one state in the operator's store: their names, and how they are created and replaced safely.

::

    meta.json                        which state of which source this is
    log/<seq, 12 digits>.json.zst    the records, one object each, written once
    snapshot.json                    the runs in force, and the last record that they contain
    snapshot-<through>.json          the snapshot before that one
    seen/run-<…>.parquet             the known files, sorted by key, one key range each
    probe-<…>                        left by a crash while the state was being opened

Writers are kept apart by conditional writes alone: an object is created only if it is absent, and replaced only if it
still has the expected ETag. ``StateStore.require_conditional_writes`` refuses a store that ignores these conditions.

If the response to a write is lost, the write may have happened. Before a write is repeated, the object is therefore
read, and our own write is recognised by its bytes.

A state may lie in the store of its source, so URLs are compared here: whether two name one directory, whether one lies
in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aioprefetch.errors import (
    AlreadyExists,
    ConditionNotMatch,
    ConfigInvalid,
    Error,
    InvalidArgument,
    NotFound,
    StateConflict,
    Unsupported,
    copy_of,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.source.stored_json import (
    check_version,
    damaged,
    fields_of,
    flag,
    milliseconds,
    optional,
    seal,
    text,
    texts,
    unseal,
)
from aioprefetch.values import Metadata, ServiceInfo
from aioprefetch.verbs.listing import list_literally

META = "meta.json"
SNAPSHOT = "snapshot.json"
LOG = "log/"
RUNS = "seen/"
KEPT_SNAPSHOTS = "snapshot-"
PROBES = "probe-"

# A name of each kind: of the objects of a state, and of the files beside it.
WRITTEN = (
    *(META, SNAPSHOT, f"{KEPT_SNAPSHOTS}000000000000.json"),
    *(f"{LOG}000000000000.json.zst", f"{RUNS}run-000000000000-0000-0000.parquet"),
    *("schema.json", "stream.json", "cleaned.json", "dead/000000000000-0.jsonl"),
)


def canonical_root(url: str) -> str:
    """The canonical URL of a directory: ``s3`` for ``s3a``, the host in lower case, no slashes at the end.

    A store in memory has a name instead of a host. Slashes within a path stay, as they are part of keys.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url.rstrip("/")
    scheme = scheme.lower()
    scheme = "s3" if scheme == "s3a" else scheme
    host, slash, path = rest.partition("/")
    if scheme != "memory":
        host = host.lower()
    return f"{scheme}://{host}{slash}{path}".rstrip("/") if host or path.strip("/") else f"{scheme}:///"


def path_below(root: str, place: str) -> str | None:
    """The path of ``place`` below ``root``, with a slash at its end (empty: equal); ``None`` if it lies elsewhere."""
    inner, outer = (url if url.endswith("/") else f"{url}/" for url in map(canonical_root, (place, root)))
    return inner.removeprefix(outer) if inner.startswith(outer) else None


def store_path_below(source: ServiceInfo, store: ServiceInfo, directory: str) -> str | None:
    """The path of a directory of ``store`` below the root of ``source``, by their service information."""
    if (source.scheme, source.endpoint, source.name) != (store.scheme, store.endpoint, store.name):
        return None
    outer = source.root.strip("/")
    inner = f"{store.root.strip('/')}/{directory}".strip("/")
    return path_below(f"{source.scheme}:///{outer}", f"{source.scheme}:///{inner}")


def would_be_read(below: str | None, takes: Callable[[str], bool]) -> bool:
    """Whether a source that ``takes`` these paths would read objects of a state in the directory ``below`` its root."""
    return below is not None and any(takes(f"{below}{name}") for name in WRITTEN)


# --- objects ----------------------------------------------------------------------------------------------------------

ATTEMPTS_MAX = 4
PAUSE_SECONDS = 0.2
CALLS_AT_ONCE = 16

_LOG_NAME = re.compile(r"log/(\d{12})\.json\.zst")
_KEPT_NAME = re.compile(r"snapshot-(\d{12})\.json")


def log_name(seq: int) -> str:
    """The name of record ``seq``. Names sort as numbers do."""
    return f"{LOG}{seq:012}.json.zst"


def seq_of(name: str) -> int | None:
    """The number of the record with this name; ``None`` for another object."""
    match = _LOG_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def kept_snapshot_name(through_seq: int) -> str:
    """The name under which a snapshot is kept once a newer one has replaced it."""
    return f"{KEPT_SNAPSHOTS}{through_seq:012}.json"


def kept_through(name: str) -> int | None:
    """The last record of the kept snapshot with this name; ``None`` for another object."""
    match = _KEPT_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def run_name(through_seq: int, number: int, token: str) -> str:
    """The name of a run that a compaction up to ``through_seq`` writes; ``token`` makes it unique."""
    return f"{RUNS}run-{through_seq:012}-{number:04}-{token}.parquet"


def checked_directory(directory: str) -> str:
    """A directory in the operator's form: ``""``, or a path with a slash at its end. Raises ``InvalidArgument``."""
    if not isinstance(directory, str) or directory.startswith("/") or not (directory == "" or directory.endswith("/")):
        raise InvalidArgument(
            f'the directory of a state is "" or a path that ends with "/", such as "state/", not {directory!r}',
            operation="open_state",
        )
    return directory


@dataclass(frozen=True, slots=True)
class Versioned:
    """The bytes of an object, and the ETag of this version."""

    data: bytes
    etag: str | None


class StateStore:
    """The objects below one directory of an operator. ``writer`` identifies this opening of the state."""

    def __init__(self, operator: Operator, directory: str, writer: str) -> None:
        self.operator = operator
        self.directory = directory
        self.writer = writer

    @property
    def url(self) -> str:
        """The location of the state, for messages."""
        return f"{self.operator.info.url}/{self.directory}"

    def path(self, name: str) -> str:
        """The operator's path of an object."""
        return self.directory + name

    # --- conditional writes -------------------------------------------------------------------------------------

    async def require_conditional_writes(self) -> None:
        """Prove by a probe object that the store honours conditions of writes. Five requests; nothing stays behind.

        ``ConfigInvalid`` for a store that does not, even if its capability claims it.
        """
        path = self.path(f"{PROBES}{secrets.token_hex(8)}")
        try:
            fault = await self._probe(path)
        except BaseException:
            with contextlib.suppress(Error):
                await self.operator.delete(path)
            raise
        await self.operator.delete(path)
        if fault is not None:
            raise ConfigInvalid(
                f"{self.url} cannot hold the state of a source: {fault}. Without conditional writes a second writer"
                " could replace records of the first one, and files would be lost or read twice. Keep the state in a"
                " store that honours If-None-Match and If-Match (such as Amazon S3), or in a local directory of the"
                " driver; the data may stay where it is",
                operation="open_state",
            )

    async def _probe(self, path: str) -> str | None:
        """The first condition that the store does not honour, in words."""
        try:
            created = await self._try_write(path, b"1", if_not_exists=True)
            etag = (created and created.etag) or (await self.operator.stat(path)).etag
            if etag is None:
                return "the store gives objects no ETag"
            if await self._try_write(path, b"22", if_not_exists=True):
                return "the store created an object a second time, although the write said If-None-Match: *"
            if not await self._try_write(path, b"333", if_match=etag):
                return "the store did not replace an object, although the write named its ETag in If-Match"
            if await self._try_write(path, b"4444", if_match=etag):
                return "the store replaced an object, although the write named another ETag in If-Match"
        except Unsupported as error:
            return f"the store does not support conditional writes ({error.message})"
        return None

    async def _try_write(
        self, path: str, data: bytes, *, if_not_exists: bool = False, if_match: str | None = None
    ) -> Metadata | None:
        """Write under a condition; ``None`` if the store refuses it."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await self.operator.write(path, data, if_not_exists=if_not_exists, if_match=if_match)
            except (AlreadyExists, ConditionNotMatch):
                if attempt == 1:
                    return None
            except Error as error:
                if error.status == "permanent" or attempt == ATTEMPTS_MAX:
                    raise
            with contextlib.suppress(NotFound):  # The earlier attempt may have happened, without its response.
                if await self.operator.read(path) == data:
                    return await self.operator.stat(path)
            await self._pause(attempt)
        return None

    # --- reading ------------------------------------------------------------------------------------------------

    async def read(self, name: str) -> bytes | None:
        """The bytes of an object; ``None`` if it does not exist."""
        try:
            return await self.operator.read(self.path(name))
        except NotFound:
            return None

    async def read_versioned(self, name: str) -> Versioned | None:
        """The bytes of an object and their ETag; ``None`` if it does not exist."""
        for _ in range(ATTEMPTS_MAX):
            try:
                etag = (await self.operator.stat(self.path(name))).etag
                return Versioned(await self.operator.read(self.path(name), if_match=etag), etag)
            except ConditionNotMatch:
                continue  # Replaced between the two requests.
            except NotFound:
                return None
        raise StateConflict("it changes all the time: another writer is at work", operation="read_state", path=name)

    async def names(self, prefix: str, *, after: str | None = None) -> list[str]:
        """The sorted names of the objects that begin with ``prefix`` and come after ``after``.

        The store may list in any order. S3's directory buckets do, and know no prefixes but directories.
        """
        path, start_after = self.path(prefix), None if after is None else self.path(after)
        if not self.operator.capability.list_ordered:
            path, start_after = path[: path.rfind("/") + 1], None
        cut = len(self.directory)
        listing = list_literally(self.operator, path, start_after=start_after)
        async with listing:
            names = [entry.path[cut:] async for entry in listing if not entry.is_directory]
        return sorted(name for name in names if name.startswith(prefix) and (after is None or name > after))

    # --- writing ------------------------------------------------------------------------------------------------

    async def write(self, name: str, data: bytes) -> None:
        """Write an object under a name that no other writer uses."""
        await self.operator.write(self.path(name), data)

    async def create(self, name: str, data: bytes) -> bytes:
        """Write an object if it is absent. Returns its content: ``data``, or the bytes of another writer.

        If it raises or is cancelled, the object is whole or absent, and may still appear a little later.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            failure: Error | None = None
            try:
                await self.operator.write(self.path(name), data, if_not_exists=True)
                return data
            except (AlreadyExists, ConditionNotMatch):
                pass
            except Error as error:
                if error.status == "permanent":
                    raise
                failure = copy_of(error)
            content = await self.read(name)
            if content is not None:
                return content
            try:
                if failure is not None and attempt == ATTEMPTS_MAX:
                    raise failure
            finally:
                del failure  # Its traceback holds this frame.
            await self._pause(attempt)
        raise StateConflict("another writer is creating it", operation="write_state", path=self.path(name))

    async def replace(self, name: str, data: bytes, before: Versioned) -> Versioned:
        """Write an object in place of the version ``before``.

        ``StateConflict`` if another version is there. If it raises or is cancelled, the object is the old or the new
        version.
        """
        if before.etag is None:
            raise Unsupported("the store gives objects no ETag", operation="write_state", path=self.path(name))
        for attempt in range(1, ATTEMPTS_MAX + 1):
            failure: Error | None = None
            try:
                metadata = await self.operator.write(self.path(name), data, if_match=before.etag)
                return Versioned(data, metadata.etag or (await self.operator.stat(self.path(name))).etag)
            except ConditionNotMatch:
                pass
            except Error as error:
                if error.status == "permanent":
                    raise
                failure = copy_of(error)
            current = await self.read_versioned(name)
            if current is not None and current.data == data:
                return current
            if failure is None or current is None or current.etag != before.etag:
                break
            try:
                if attempt == ATTEMPTS_MAX:
                    raise failure
            finally:
                del failure  # Its traceback holds this frame.
            await self._pause(attempt)
        raise StateConflict("another writer has replaced it", operation="write_state", path=self.path(name))

    async def delete(self, name: str) -> None:
        """Delete an object. A missing object is ignored."""
        await self.operator.delete(self.path(name))

    async def _pause(self, attempt: int) -> None:
        runtime = self.operator.runtime()
        await asyncio.sleep(runtime.random.uniform(0.0, PAUSE_SECONDS * 2.0**attempt))


# --- meta.json --------------------------------------------------------------------------------------------------------

# Format 1 also had the flags ``creates`` and ``replaces``, for stores without conditional writes.
META_VERSION = 2


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The settings that must not change between runs of one source: its URL, its glob, and options by their names.

    They are stored and shown, so they contain no secrets.
    """

    url: str
    glob: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def differences(self, other: SourceIdentity) -> list[str]:
        """The differences of ``other``, in words."""
        differences = [
            f"{name} was {mine!r} and is {theirs!r}"
            for name, mine, theirs in (("url", self.url, other.url), ("glob", self.glob, other.glob))
            if mine != theirs and not (name == "url" and canonical_root(self.url) == canonical_root(other.url))
        ]
        for name in sorted({*self.options, *other.options}):
            mine, theirs = self.options.get(name), other.options.get(name)
            if mine != theirs:
                differences.append(f"option {name!r} was {mine!r} and is {theirs!r}")
        return differences


@dataclass(frozen=True, slots=True)
class StateMeta:
    """The content of ``meta.json``."""

    uuid: str
    identity: SourceIdentity
    created_ms: int

    def to_json(self) -> dict[str, Any]:
        """JSON fields in a fixed order."""
        return {
            "v": META_VERSION,
            "state": self.uuid,
            "url": self.identity.url,
            "glob": self.identity.glob,
            "options": dict(self.identity.options),
            "created_ms": self.created_ms,
        }

    @classmethod
    def from_json(cls, value: Any, *, path: str) -> StateMeta:
        """The meta of these fields. ``Unsupported`` for a newer format, ``UntrustedMetadata`` for other values."""
        check_version(value, META_VERSION, path=path)
        try:
            flags = ("creates", "replaces") if value["v"] == 1 else ()
            fields = fields_of(value, ("v", "state", "url", "glob", "options", *flags, "created_ms"))
            for name in flags:
                flag(fields[name])
            return cls(
                uuid=text(fields["state"]),
                identity=SourceIdentity(text(fields["url"]), optional(text, fields["glob"]), texts(fields["options"])),
                created_ms=milliseconds(fields["created_ms"]),
            )
        except ValueError as error:
            raise damaged(f"a field is not what it should be: {error}", path) from error


async def load_meta(store: StateStore) -> StateMeta | None:
    """The meta; ``None`` if there is no state. ``UntrustedMetadata`` if only the meta is missing."""
    path = store.path(META)
    content = await store.read(META)
    if content is None:
        others = [name for prefix in (LOG, SNAPSHOT, KEPT_SNAPSHOTS, RUNS) for name in await store.names(prefix)]
        if not others:
            return None
        content = await store.read(META)  # Another process may have made the whole state in between.
        if content is None:
            raise damaged(f"{META} is missing, although {others[0]} is there", path)
    return StateMeta.from_json(unseal(content, path=path)[0], path=path)


async def create_meta(store: StateStore, identity: SourceIdentity, *, now_ms: int) -> StateMeta:
    """Make a new state, or take what another process has made meanwhile."""
    meta = StateMeta(str(uuid.uuid4()), identity, now_ms)
    content = await store.create(META, seal(meta.to_json())[0])
    return StateMeta.from_json(unseal(content, path=store.path(META))[0], path=store.path(META))


def new_writer() -> str:
    """A unique name for one opening of a state."""
    return secrets.token_hex(8)


def check_identity(meta: StateMeta, identity: SourceIdentity, *, url: str) -> None:
    """``StateConflict`` unless the state belongs to that source."""
    different = meta.identity.differences(identity)
    if different:
        raise StateConflict(
            f"the state at {url} belongs to another source: {'; '.join(different)}. Give this source a state location"
            " and a checkpoint of its own, or its former settings",
            operation="open_state",
            path=META,
        )


def check_capable(store: StateStore, *, writer: bool) -> None:
    """``ConfigInvalid`` for a store without an operation that a state needs."""
    capability = store.operator.capability
    needed = ("read", "write", "list", "delete") if writer else ("read", "list")
    lacking = [name for name in needed if not getattr(capability, name)]
    if lacking:
        raise ConfigInvalid(
            f"{store.url} cannot hold the state of a source: the store does not support {', '.join(lacking)}",
            operation="open_state",
        )


def missing_state(store: StateStore) -> NotFound:
    """The error for a reader where no state was made."""
    return NotFound(
        f"there is no state of a source at {store.url}: start the source that lists, then attach to it",
        operation="open_state",
        path=store.path(META),
    )
