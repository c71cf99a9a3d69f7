"""Which conditions of writes a store honours: some take them and ignore them (``rclone serve s3``)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from aioprefetch.errors import AlreadyExists, ConditionNotMatch
from aioprefetch.operator.operator import Operator
from aioprefetch.source.state.layout import PROBES

NO_ETAG = "0" * 32


@dataclass(frozen=True, slots=True)
class Conditions:
    """Which conditions the store honours: ``if_not_exists`` of a new object, ``if_match`` of one that is replaced."""

    creates: bool = True
    replaces: bool = True

    @property
    def all(self) -> bool:
        """Whether writers are kept apart for certain."""
        return self.creates and self.replaces


async def probe(operator: Operator, directory: str) -> Conditions:
    """Find out which conditions the store honours, by an object of our own that is deleted again."""
    path = f"{directory}{PROBES}{secrets.token_hex(8)}"
    capability = operator.capability
    creates, replaces = capability.write_if_not_exists, capability.write_if_match
    try:
        etag = (await operator.write(path, b"1")).etag or (await operator.stat(path)).etag
        if creates:
            creates = await refuses_to_create(operator, path, b"2")
        if replaces:
            replaces = await _honours_if_match(operator, path, etag)
    finally:
        await operator.delete(path)
    return Conditions(creates, replaces)


async def refuses_to_create(operator: Operator, path: str, data: bytes) -> bool:
    """Whether an object that is there is not created once more."""
    try:
        await operator.write(path, data, if_not_exists=True)
    except (AlreadyExists, ConditionNotMatch):
        return True
    return False


async def refuses_to_replace(operator: Operator, path: str, data: bytes) -> bool:
    """Whether an object is not replaced in place of a version that it is not."""
    try:
        await operator.write(path, data, if_match=NO_ETAG)
    except ConditionNotMatch:
        return True
    return False


async def _honours_if_match(operator: Operator, path: str, etag: str | None) -> bool:
    if etag is None or not await refuses_to_replace(operator, path, b"3"):
        return False
    try:
        await operator.write(path, b"4", if_match=etag)
    except ConditionNotMatch:
        return False
    return True
