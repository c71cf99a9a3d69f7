"""The identity of a state and of its source: ``meta.json``, written once."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aioprefetch.errors import ConfigInvalid, NotFound, StateConflict
from aioprefetch.source.json_fields import fields_of, flag, milliseconds, optional, text, texts
from aioprefetch.source.roots import canonical_root
from aioprefetch.source.state.checksummed_json import check_version, damaged, seal, unseal
from aioprefetch.source.state.store import KEPT_SNAPSHOTS, LOG, META, RUNS, SNAPSHOT, StateStore

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
    """Make a new state, or take the one that another process has made meanwhile."""
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
