"""Hadoop's ``openFile()`` builder: opens a reader by string keys, in code or from a job's configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType, IsADirectory, NotFound
from aioprefetch.operator.open_file_keys import BUFFER_SIZE, Settings, describe, known_object, reader_keywords
from aioprefetch.ranges import ByteCount, byte_count
from aioprefetch.reader.reader import RangeReader
from aioprefetch.runtime.options import RuntimeOptions


class PendingReader(Awaitable[RangeReader]):
    """A reader that is being opened, a future in Hadoop's words: ``await`` returns the same reader each time.

    Nothing is sent before the reader's first read, so awaiting it neither waits nor leaves anything behind when it is
    cancelled. ``async with`` awaits it, and closes the reader at the end. ``asyncio.ensure_future`` makes a real
    future of it, for callbacks.
    """

    def __init__(self, outcome: RangeReader | IsADirectory | NotFound, described: str) -> None:
        self._outcome = outcome
        self._described = described

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._described}>"

    def __await__(self) -> Generator[Any, None, RangeReader]:
        return self._result().__await__()

    async def _result(self) -> RangeReader:
        if isinstance(self._outcome, RangeReader):
            return self._outcome
        raise self._outcome

    async def __aenter__(self) -> RangeReader:
        return await (await self._result()).__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await (await self._result()).aclose()

    if not TYPE_CHECKING:  # Type checkers find a forgotten await by themselves.

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"{type(self).__name__!r} has no attribute {name!r}: it is a reader that was not awaited yet; write"
                " reader = await builder.build(), or async with builder.build() as reader",
                name=name,
                obj=self,
            )


class KeyedBuilder:
    """Opens one object by Hadoop's keys: the common base of the asynchronous and the blocking builder.

    ``opt`` sets a key that may be ignored where it is unknown, ``must`` one that has to be known. The last call for a
    key decides on its value and on ``opt`` or ``must``. Calls check nothing and return the builder; ``build`` checks
    everything. The keys and what they become: ``aioprefetch.operator.open_file_keys`` and docs/maps/openfile.md.
    After Hadoop's ``FutureDataInputStreamBuilder``, whose camel-case names are snake-case here.
    """

    def __init__(self, path: str, open_reader: Callable[..., RangeReader], limits: RuntimeOptions) -> None:
        self._path = path
        self._open_reader = open_reader
        self._limits = limits
        self._settings = Settings()
        self._status: object | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._described()}>"

    def opt(self, key: str, value: object) -> Self:
        """Set a key. A value may be text, a number, a bool or a list; empty text counts as no value.

        ``None`` forgets the key: as if it had never been set, by ``opt`` or by ``must``.
        """
        self._settings.put(key, value, mandatory=False)
        return self

    def must(self, key: str, value: object) -> Self:
        """Set a key like ``opt``, but ``build`` raises ``ConfigInvalid`` if it is unknown."""
        self._settings.put(key, value, mandatory=True)
        return self

    def opt_long(self, key: str, value: int | str) -> Self:
        """Set a key to an integer, like ``opt``."""
        return self.opt(key, value)

    def opt_double(self, key: str, value: float | str) -> Self:
        """Set a key to a float. No known key takes one: where an integer is needed, it counts as unset."""
        return self.opt(key, value)

    def must_long(self, key: str, value: int | str) -> Self:
        """Set a mandatory key to an integer, like ``must``."""
        return self.must(key, value)

    def must_double(self, key: str, value: float | str) -> Self:
        """Set a mandatory key to a float. No known key takes one: where an integer is needed, it counts as unset."""
        return self.must(key, value)

    def buffer_size(self, size: ByteCount) -> Self:
        """The chunk of ``stream()`` in bytes, as by the key ``fs.option.openfile.buffer.size``; also ``"64 KiB"``."""
        with suppress(ConfigInvalid):  # Calls check nothing: it is the key's to refuse.
            return self.opt(BUFFER_SIZE, byte_count(size, "buffer_size", operation="open_file", path=self._path))
        return self.opt(BUFFER_SIZE, size)

    def with_status(self, status: object | None) -> Self:
        """Pass the known status of the object: ``Metadata``, ``Entry``, or an object or mapping with path and size.

        Reads end at its size, which overrides a length option, and no request asks for the size. Its ETag and version
        pin the object before the first request. ``None`` means that nothing is known.
        """
        self._status = status
        return self

    def propagate(
        self,
        config: Mapping[str, object],
        *,
        option_prefix: str = "mapreduce.job.input.file.option.",
        must_prefix: str = "mapreduce.job.input.file.must.",
    ) -> Self:
        """Set every key of ``config`` that begins with one of the prefixes, without its prefix, by ``opt`` or ``must``.

        The mandatory keys come last, so they win. A dot is added to a prefix that ends without one. The default
        prefixes are those of MapReduce jobs. ``InvalidType`` for anything but a mapping.
        """
        if not isinstance(config, Mapping):
            raise InvalidType(
                f"propagate() needs a mapping of keys to values, not {type(config).__name__}",
                operation="open_file",
                path=self._path,
            )
        for prefix, mandatory in ((option_prefix, False), (must_prefix, True)):
            whole = prefix if prefix.endswith(".") else prefix + "."
            for key, value in config.items():
                if isinstance(key, str) and key.startswith(whole):
                    self._settings.put(key.removeprefix(whole), value, mandatory=mandatory)
        return self

    def _described(self) -> str:
        """The path and the known keys, for a repr. Other keys may be secret, and a status may be large."""
        options = describe(self._settings)
        return repr(self._path) + (f" {options}" if options else "")

    def _resolve(self) -> tuple[RangeReader, dict[str, Any]]:
        """Check everything: the reader that was opened, which has sent nothing, and its options."""
        path, settings = self._path, self._settings
        options = reader_keywords(settings, limits=self._limits, path=path)
        status = known_object(self._status, path=path)
        options |= status.keywords()
        try:
            reader = self._open_reader(path, **options)
        except IsADirectory as error:
            error.operation = "open_file"
            raise (_no_object(path) if status.is_directory else error) from None
        except InvalidArgument as error:
            error.operation = "open_file"
            raise error.add_context(options=describe(settings)) from None
        if status.is_directory:
            raise _no_object(path)
        return reader, options


def _no_object(path: str) -> NotFound:
    return NotFound("the status says that a directory is there, no object", operation="open_file", path=path)


class OpenFileBuilder(KeyedBuilder):
    """Opens one object by Hadoop's keys; made by ``operator.open_file(path)``."""

    def build(self) -> PendingReader:
        """Check everything, and open: a plain call that needs no loop and sends nothing.

        Await the result, or use it by ``async with``. Raises ``ConfigInvalid`` for an unknown mandatory key, an
        invalid block size or count, or a status of another object; ``Unsupported`` for S3 Select. Errors of the object
        itself are raised later: awaiting raises ``IsADirectory`` when the path ends with ``/`` and ``NotFound`` when
        the status is a directory's; the first read finds out that an object is missing or may not be read.
        Each call opens another reader.
        """
        outcome: RangeReader | IsADirectory | NotFound
        try:
            outcome, _ = self._resolve()
        except (IsADirectory, NotFound) as error:
            outcome = error
        return PendingReader(outcome, self._described())
