"""Which state this is, and of which source: ``meta.json``, written once."""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aioprefetch.errors import ConfigInvalid, NotFound, StateConflict, Unsupported
from aioprefetch.source.json_fields import fields_of, flag, integer, milliseconds, optional, text, texts
from aioprefetch.source.roots import canonical_root
from aioprefetch.source.state.conditions import Conditions, probe
from aioprefetch.source.state.layout import KEPT_SNAPSHOTS, LOG, META, RUNS, SNAPSHOT
from aioprefetch.source.state.sealed import damaged, seal, unseal
from aioprefetch.source.state.store import StateStore

META_VERSION = 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """What must not change between runs of one source: where it lists, what it takes, and options by their names.

    It is stored and shown: no secrets.
    """

    url: str
    glob: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def differences(self, other: SourceIdentity) -> list[str]:
        """What ``other`` has otherwise, in words."""
        found = [
            f"{name} was {mine!r} and is {theirs!r}"
            for name, mine, theirs in (("url", self.url, other.url), ("glob", self.glob, other.glob))
            if mine != theirs and not (name == "url" and canonical_root(self.url) == canonical_root(other.url))
        ]
        for name in sorted({*self.options, *other.options}):
            mine, theirs = self.options.get(name), other.options.get(name)
            if mine != theirs:
                found.append(f"option {name!r} was {mine!r} and is {theirs!r}")
        return found


@dataclass(frozen=True, slots=True)
class StateMeta:
    """The content of ``meta.json``."""

    uuid: str
    identity: SourceIdentity
    conditions: Conditions
    created_ms: int

    def to_json(self) -> dict[str, Any]:
        """For JSON, in a fixed order."""
        return {
            "v": META_VERSION,
            "state": self.uuid,
            "url": self.identity.url,
            "glob": self.identity.glob,
            "options": dict(self.identity.options),
            "creates": self.conditions.creates,
            "replaces": self.conditions.replaces,
            "created_ms": self.created_ms,
        }

    @classmethod
    def from_json(cls, value: Any, *, path: str) -> StateMeta:
        """The meta that ``to_json`` wrote. ``Unsupported`` for a newer format, ``UntrustedMetadata`` for no format."""
        check_version(value, META_VERSION, path=path)
        try:
            fields = fields_of(value, ("v", "state", "url", "glob", "options", "creates", "replaces", "created_ms"))
            return cls(
                uuid=text(fields["state"]),
                identity=SourceIdentity(text(fields["url"]), optional(text, fields["glob"]), texts(fields["options"])),
                conditions=Conditions(flag(fields["creates"]), flag(fields["replaces"])),
                created_ms=milliseconds(fields["created_ms"]),
            )
        except ValueError as error:
            raise damaged(f"a field is not what it should be: {error}", path) from error


def check_version(fields: Any, version: int, *, path: str) -> None:
    """``Unsupported`` for what a newer version wrote, ``UntrustedMetadata`` for what none did."""
    try:
        found = integer(fields.get("v") if isinstance(fields, dict) else None, 1)
    except ValueError as error:
        raise damaged(f"it has no version of a format: {error}", path) from error
    if found > version:
        raise Unsupported(
            f"it is of format {found}, and this version of aioprefetch reads formats up to {version}: update it",
            operation="read_state",
            path=path,
        )


async def load_meta(store: StateStore) -> StateMeta | None:
    """The meta, ``None`` where no state is. ``UntrustedMetadata`` where only the meta is gone."""
    path = store.path(META)
    found = await store.read(META)
    if found is None:
        others = [name for prefix in (LOG, SNAPSHOT, KEPT_SNAPSHOTS, RUNS) for name in await store.names(prefix)]
        if not others:
            return None
        found = await store.read(META)  # Somebody else may have made all of it in between.
        if found is None:
            raise damaged(f"{META} is missing, although {others[0]} is there", path)
    return StateMeta.from_json(unseal(found, path=path)[0], path=path)


async def create_meta(store: StateStore, identity: SourceIdentity, *, now_ms: int) -> StateMeta:
    """Make a new state, or take the one that somebody else has made meanwhile."""
    conditions = await probe(store.operator, store.directory)
    meta = StateMeta(str(uuid.uuid4()), identity, conditions, now_ms)
    data, _ = seal(meta.to_json())
    store.conditions = conditions
    await store.take_over()
    found = await store.create(META, data)
    return StateMeta.from_json(unseal(found, path=store.path(META))[0], path=store.path(META))


def new_writer() -> str:
    """A name for one opening of a state; no two are equal."""
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
    """``ConfigInvalid`` for a store that cannot hold a state."""
    capability = store.operator.capability
    needed = ("read", "write", "list", "delete") if writer else ("read", "list")
    lacking = [name for name in needed if not getattr(capability, name)]
    if lacking:
        raise ConfigInvalid(
            f"{store.url} cannot hold the state of a source: the store does not support {', '.join(lacking)}",
            operation="open_state",
        )


def missing_state(store: StateStore) -> NotFound:
    """The error for a reader of a state that was never made."""
    return NotFound(
        f"there is no state of a source at {store.url}: start the source that lists, then attach to it",
        operation="open_state",
        path=store.path(META),
    )


def warn_unless_conditional(store: StateStore) -> None:
    """Say that two writers at one time are not kept apart for certain."""
    conditions = store.conditions
    if not conditions.all:
        logger.warning(
            "the store of the state at %s ignores conditions of writes (if_not_exists: %s, if_match: %s): never start"
            " two queries on it at once; a store that honours them keeps them apart",
            store.url,
            "honoured" if conditions.creates else "ignored",
            "honoured" if conditions.replaces else "ignored",
        )
