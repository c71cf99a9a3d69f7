"""The objects of one state in the operator's store: create if absent, replace if unchanged, recognise our own writes.

A write whose response was lost may have happened. Each one here is therefore looked for before it is tried again, and
found by its bytes.

Some stores take conditions and ignore them (``rclone serve s3``; see ``conditions``). There an object ``writer.json``
names who may write: whoever opens the state takes it over, and it is looked at before and after each write that
matters. That is weaker: two writers that write within the same moment can damage the state, which is then noticed when
it is read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aioprefetch.errors import AlreadyExists, ConditionNotMatch, Error, NotFound, StateConflict
from aioprefetch.operator.operator import Operator, list_literally
from aioprefetch.source.json_fields import parsed
from aioprefetch.source.state.conditions import Conditions
from aioprefetch.source.state.layout import WRITER
from aioprefetch.source.state.sealed import to_bytes

ATTEMPTS_MAX = 4
PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Versioned:
    """An object's bytes and the ETag that goes with them."""

    data: bytes
    etag: str | None


class StateStore:
    """The objects below one directory, by the names of ``layout``."""

    def __init__(self, operator: Operator, directory: str, writer: str) -> None:
        self.operator = operator
        self.directory = directory
        self.writer = writer
        self.conditions = Conditions()

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        return f"{self.operator.info.url}/{self.directory}"

    def path(self, name: str) -> str:
        """The operator's path of an object."""
        return self.directory + name

    # --- reading ------------------------------------------------------------------------------------------------

    async def read(self, name: str) -> bytes | None:
        """The bytes of an object, ``None`` when there is none."""
        try:
            return await self.operator.read(self.path(name))
        except NotFound:
            return None

    async def read_versioned(self, name: str) -> Versioned | None:
        """The bytes of an object and their ETag, ``None`` when there is none."""
        for _ in range(ATTEMPTS_MAX):
            try:
                etag = (await self.operator.stat(self.path(name))).etag
                return Versioned(await self.operator.read(self.path(name), if_match=etag), etag)
            except ConditionNotMatch:
                continue  # Replaced in between.
            except NotFound:
                return None
        raise StateConflict("it changes all the time: another writer is at work", operation="read_state", path=name)

    async def names(self, prefix: str, *, after: str | None = None) -> list[str]:
        """The names of the objects that begin with ``prefix`` and come after ``after``, in order.

        The store may list in no order. Such stores (S3's directory buckets) know no prefixes but directories.
        """
        path, start_after = self.path(prefix), None if after is None else self.path(after)
        if self.operator.info.name.endswith("--x-s3") or not self.operator.capability.list_start_after:
            path, start_after = path[: path.rfind("/") + 1], None
        cut = len(self.directory)
        listing = list_literally(self.operator, path, start_after=start_after)
        async with listing:
            found = [entry.path[cut:] async for entry in listing if not entry.is_directory]
        return sorted(name for name in found if name.startswith(prefix) and (after is None or name > after))

    # --- writing ------------------------------------------------------------------------------------------------

    async def write(self, name: str, data: bytes) -> None:
        """Write an object that nobody else writes."""
        await self.operator.write(self.path(name), data)

    async def create(self, name: str, data: bytes) -> bytes:
        """Write an object unless it is there, and return what is there then: ``data`` itself, or somebody else's.

        If it raises or is cancelled, the object is there whole, or is not, or comes a little later.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            failure: Error | None = None
            try:
                return await self._create_once(name, data)
            except (AlreadyExists, ConditionNotMatch):
                pass
            except Error as error:
                if error.status == "permanent":
                    raise
                failure = error
            found = await self.read(name)
            if found is not None:
                return data if found == data else found
            if failure is not None and attempt == ATTEMPTS_MAX:
                raise failure
            await self._pause(attempt)
        raise StateConflict("another writer is creating it", operation="write_state", path=self.path(name))

    async def _create_once(self, name: str, data: bytes) -> bytes:
        if self.conditions.creates:
            await self.operator.write(self.path(name), data, if_not_exists=True)
            return data
        await self.check_writer()
        found = await self.read(name)
        if found is None:
            await self.operator.write(self.path(name), data)
            await self.check_writer()
            found = await self.read(name)
        return data if found is None or found == data else found

    async def replace(self, name: str, data: bytes, before: Versioned | None) -> Versioned:
        """Write an object in place of the version ``before``, or where there was none.

        ``StateConflict`` if it is another version by now. If it raises or is cancelled, it is the old or the new one.
        """
        if before is None:
            found = await self.create(name, data)
            if found != data:
                raise self._replaced(name)
            return await self._written(name, data, None)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            failure: Error | None = None
            try:
                return await self._replace_once(name, data, before)
            except ConditionNotMatch:
                pass
            except Error as error:
                if error.status == "permanent":
                    raise
                failure = error
            found_now = await self.read_versioned(name)
            if found_now is not None and found_now.data == data:
                return found_now
            if failure is None or found_now is None or found_now.etag != before.etag:
                raise self._replaced(name)
            if attempt == ATTEMPTS_MAX:
                raise failure
            await self._pause(attempt)
        raise self._replaced(name)

    async def _replace_once(self, name: str, data: bytes, before: Versioned) -> Versioned:
        if self.conditions.replaces and before.etag is not None:
            metadata = await self.operator.write(self.path(name), data, if_match=before.etag)
            return await self._written(name, data, metadata.etag)
        await self.check_writer()
        metadata = await self.operator.write(self.path(name), data)
        await self.check_writer()
        return await self._written(name, data, metadata.etag)

    async def _written(self, name: str, data: bytes, etag: str | None) -> Versioned:
        if etag is None:
            etag = (await self.operator.stat(self.path(name))).etag
        return Versioned(data, etag)

    async def delete(self, name: str) -> None:
        """Delete an object; one that is missing is no error."""
        await self.operator.delete(self.path(name))

    # --- where conditions are ignored ---------------------------------------------------------------------------

    async def take_over(self) -> None:
        """Be the one who may write, where conditions are ignored. Never waits for who was it before."""
        if not self.conditions.all:
            await self.write(WRITER, to_bytes({"writer": self.writer}))

    async def check_writer(self) -> None:
        """``StateConflict`` if another writer has taken over."""
        found = await self.read(WRITER)
        try:
            writer = None if found is None else parsed(found)["writer"]
        except (ValueError, KeyError, TypeError):
            writer = None
        if writer != self.writer:
            raise StateConflict(
                "another writer has taken over this state", operation="write_state", path=self.path(WRITER)
            )

    def _replaced(self, name: str) -> StateConflict:
        return StateConflict("another writer has replaced it", operation="write_state", path=self.path(name))

    async def _pause(self, attempt: int) -> None:
        runtime = self.operator.runtime()
        await asyncio.sleep(runtime.random.uniform(0.0, PAUSE_SECONDS * 2.0**attempt))
