"""Hadoop's ``openFile()`` builder: opens a reader by string keys, in code or from a job's configuration.

The standard keys come from Hadoop's specification of ``FutureDataInputStreamBuilder``; the vendors' come from
S3A and ABFS. ``docs/maps/openfile.md`` repeats the table, with the reasons.

Values are text, as in a configuration. A text that its key cannot use counts as unset and is logged once: since
HADOOP-18724 a bad hint must never fail an open.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from aioprefetch.credentials import frameless
from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType, IsADirectory, NotFound, Unsupported, copy_of
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import table_of
from aioprefetch.ranges import OFFSET_MAX, ByteCount, Range, byte_count, checked_int
from aioprefetch.reader.options import ReaderRows
from aioprefetch.reader.policy import POLICIES, Policy, listed_policy
from aioprefetch.reader.reader import RangeReader
from aioprefetch.runtime.closing import refused
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.verbs.arguments import check_file

BUFFER_SIZE = "fs.option.openfile.buffer.size"
READ_POLICY = "fs.option.openfile.read.policy"
LENGTH = "fs.option.openfile.length"
SPLIT_START = "fs.option.openfile.split.start"
SPLIT_END = "fs.option.openfile.split.end"
FOOTER_CACHE = "fs.option.openfile.footer.cache"

PREFETCH_ENABLED = "fs.s3a.prefetch.enabled"
PREFETCH_BLOCK_SIZE = "fs.s3a.prefetch.block.size"
PREFETCH_BLOCK_COUNT = "fs.s3a.prefetch.block.count"
PREFETCH_MAX_BLOCKS_COUNT = "fs.s3a.prefetch.max.blocks.count"
INPUT_FADVISE = "fs.s3a.input.fadvise"
EXPERIMENTAL_FADVISE = "fs.s3a.experimental.input.fadvise"
READAHEAD_RANGE = "fs.s3a.readahead.range"
ASYNC_DRAIN_THRESHOLD = "fs.s3a.input.async.drain.threshold"
STREAM_TYPE = "fs.s3a.input.stream.type"
VECTORED_GAP = "fs.s3a.vectored.read.min.seek.size"
VECTORED_REQUEST = "fs.s3a.vectored.read.max.merged.size"
VECTORED_ACTIVE_READS = "fs.s3a.vectored.active.ranged.reads"
BUFFERED_PREAD_DISABLE = "fs.azure.buffered.pread.disable"

# Every key below it asks for S3 Select: a response to a query, not the bytes of the object.
SELECT_PREFIX = "fs.s3a.select."

Treatment = Literal["honoured", "aliased", "ignored"]


@dataclass(frozen=True, slots=True)
class Key:
    """A known key. ``option`` is the option of ``operator.reader()`` that it becomes, ``""`` if it is ignored.

    ``honoured``: it has the meaning of Hadoop. ``aliased``: it becomes the nearest setting of this project.
    """

    name: str
    treatment: Treatment
    option: str


def _keys() -> Iterator[Key]:
    """The keys in the rows of a reader's options, and keys that are known to mean nothing here."""
    for prefix, library in (("fs.option.openfile.", "openfile"), ("fs.s3a.", "hadoop")):
        for row in table_of(ReaderRows).values():
            for word in row.words(library):
                is_same = library == "openfile" or word.startswith("prefetch.")
                yield Key(prefix + word, "honoured" if is_same else "aliased", row.name)
    for name in (PREFETCH_MAX_BLOCKS_COUNT, ASYNC_DRAIN_THRESHOLD, VECTORED_ACTIVE_READS):
        yield Key(name, "ignored", "")
    yield Key(BUFFERED_PREAD_DISABLE, "aliased", "policy")


KEYS: Mapping[str, Key] = MappingProxyType({key.name: key for key in _keys()})

_INTEGER_TEXT = re.compile(r"([+-]?[0-9]{1,19})()")
_SIZE_TEXT = re.compile(r"([+-]?[0-9]{1,19})([kmgtpe]?)", re.IGNORECASE)
_SHIFT = {suffix: 10 * power for power, suffix in enumerate(("", "k", "m", "g", "t", "p", "e"))}
_FLAGS = {"true": True, "false": False}

# The log shows at most this much of an invalid value.
_LOGGED_CHARACTERS_MAX = 80

# S3A's name for its default policy.
_POLICY_ALIASES = {"normal": "adaptive"}

# The names of Metadata and Entry, then the names in Hadoop, boto3, fsspec, obstore and pyarrow.
_PATH_NAMES = ("path", "name", "Key", "key")
_SIZE_NAMES = ("size", "length", "len", "Size", "ContentLength")
_ETAG_NAMES = ("etag", "e_tag", "ETag")
_VERSION_NAMES = ("version", "version_id", "VersionId")
_KIND_NAMES = ("kind", "type")
_DIRECTORY_NAMES = ("is_directory", "is_dir", "isdir")


@dataclass(frozen=True, slots=True)
class Setting:
    """A call of ``opt`` or ``must``."""

    value: object
    mandatory: bool


class Settings:
    """The settings of one builder. A value is checked when it is read, not when it is put."""

    def __init__(self) -> None:
        self._settings: dict[str, Setting] = {}

    def put(self, key: str, value: object, *, mandatory: bool) -> None:
        """Set a key: the last call decides on value and ``mandatory``; ``None`` forgets the key."""
        if value is None:
            self._settings.pop(str(key), None)
        else:
            self._settings[str(key)] = Setting(value, mandatory)

    def items(self) -> Iterator[tuple[str, Setting]]:
        """All keys, known or not."""
        yield from self._settings.items()

    def text(self, key: str) -> str | None:
        """The value as text, trimmed; ``None`` when it is not set, or empty. A list is joined with commas."""
        setting = self._settings.get(key)
        if setting is None:
            return None
        value = setting.value
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        return str(value).strip() or None

    def integer(self, key: str) -> int | None:
        """A number of 64 bits with a sign, a ``long`` of Java; ``None`` when it is not set or invalid."""
        return self._number(key, _INTEGER_TEXT, "an integer")

    def size(self, key: str) -> int | None:
        """Bytes, as Hadoop's configuration has them: a number that may end in one of K, M, G, T, P, E."""
        return self._number(key, _SIZE_TEXT, "a number of bytes")

    def flag(self, key: str) -> bool | None:
        """``true`` or ``false`` in any case; ``None`` when it is not set, or neither."""
        text = self.text(key)
        if text is None:
            return None
        flag = _FLAGS.get(text.lower())
        if flag is None:
            warn_once(key, text[:_LOGGED_CHARACTERS_MAX], "not true or false and counts as unset")
        return flag

    def names(self, key: str) -> list[str]:
        """A list separated by commas, in lower case, without empty elements."""
        parts = (part.strip().lower() for part in (self.text(key) or "").split(","))
        return [part for part in parts if part]

    def _number(self, key: str, form: re.Pattern[str], wanted: str) -> int | None:
        text = self.text(key)
        if text is None:
            return None
        match = form.fullmatch(text)
        number = 0 if match is None else int(match[1]) << _SHIFT[match[2].lower()]
        if match is None or not -OFFSET_MAX - 1 <= number <= OFFSET_MAX:
            warn_once(key, text[:_LOGGED_CHARACTERS_MAX], f"not {wanted} and counts as unset")
            return None
        return number


def note_once(message: str, name: str) -> None:
    """Log an ignored, unknown name at DEBUG; each name once in the life of the process."""
    if logger.isEnabledFor(logging.DEBUG):
        _note_once(message, name[:_LOGGED_CHARACTERS_MAX])


@lru_cache(maxsize=256)
def _note_once(message: str, name: str) -> None:
    logger.debug(message, name)


@lru_cache(maxsize=256)
def warn_once(key: str, text: str, why: str) -> None:
    """Log a value that its key cannot use: once in the life of the process, though a job opens a million files."""
    logger.warning("open_file: %s=%r is %s", key, text, why)


def reader_keywords(settings: Settings, *, limits: RuntimeOptions, path: str) -> dict[str, Any]:
    """The options that the settings set. ``limits`` are the operator's, for settings in blocks.

    A block that does not fit into memory, which is legal at S3A, becomes the largest that does; where ``must`` asks for
    it, the reader refuses it. Raises ``ConfigInvalid`` for an unknown mandatory key and for a block size or count below
    1, ``Unsupported`` for S3 Select.
    """
    check_keys(settings, path=path)
    keywords: dict[str, Any] = {
        "policy": _policy(settings),
        "size": _hint(settings.integer(LENGTH), minimum=0),
        "split": _split(settings),
        "buffer_bytes": _hint(settings.size(BUFFER_SIZE), minimum=1),
        "footer_cache": settings.flag(FOOTER_CACHE),
        "prefetch_enabled": _prefetch_enabled(settings),
        "block_bytes": _block_bytes(settings, limits.memory_bytes, path=path),
        "prefetch_blocks": _at_least_one(settings, PREFETCH_BLOCK_COUNT, path=path),
    }
    if keywords["prefetch_blocks"] is None:
        keywords["prefetch_blocks"] = _readahead_blocks(settings, keywords["block_bytes"] or limits.block_bytes, limits)
    return {name: value for name, value in keywords.items() if value is not None}


def check_keys(settings: Settings, *, path: str) -> None:
    """Refuse keys that would change the bytes of the object, and unknown mandatory keys."""
    for key, setting in settings.items():
        if key.startswith(SELECT_PREFIX):
            raise Unsupported(
                f"{key!r} asks for S3 Select, and readers give the bytes of the object as they are: leave it out",
                operation="open_file",
                path=path,
            )
        if key in KEYS:
            continue
        if setting.mandatory:
            # The value is left out: the key may be one of credentials.
            raise ConfigInvalid(
                f"must() was given {key!r}, which is not a known key{_nearest(key)}: set it by opt(), which ignores"
                f" what is unknown, or use one of {', '.join(sorted(KEYS))}",
                operation="open_file",
                path=path,
            )
        note_once("open_file: %r is not a known key, and opt() ignores it", key)


def _nearest(key: str) -> str:
    """The known key that may have been meant, as a question."""
    from difflib import get_close_matches

    matches = get_close_matches(key, KEYS, n=1, cutoff=0.8)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def describe(settings: Settings) -> str:
    """The known keys that are set, as ``key='value'``, for errors. Values of other keys may be secret."""
    return ", ".join(f"{key}={settings.text(key)!r}" for key, _ in settings.items() if key in KEYS)


def _prefetch_enabled(settings: Settings) -> bool | None:
    """The flag, or what the type of S3A's stream says where the flag is not set."""
    enabled, kinds = settings.flag(PREFETCH_ENABLED), settings.names(STREAM_TYPE)
    return {"prefetch": True, "classic": False}.get(kinds[0]) if enabled is None and kinds else enabled


def _policy(settings: Settings) -> str | Policy | None:
    """The named policy, with the figures for reads of several ranges that are set."""
    name = _policy_name(settings)
    gap_bytes = _hint(settings.size(VECTORED_GAP), minimum=0)
    request_bytes_max = _hint(settings.size(VECTORED_REQUEST), minimum=1)
    if gap_bytes is None and request_bytes_max is None:
        return name
    policy = POLICIES[name or "adaptive"]
    return replace(
        policy,
        gap_bytes=policy.gap_bytes if gap_bytes is None else gap_bytes,
        request_bytes_max=request_bytes_max or policy.request_bytes_max,
    )


def _policy_name(settings: Settings) -> str | None:
    """The first recognised name. A vendor's key counts only where the keys before it are not set."""
    for key in (READ_POLICY, INPUT_FADVISE, EXPERIMENTAL_FADVISE):
        names = settings.names(key)
        for name in names:
            policy = listed_policy([_POLICY_ALIASES.get(name, name)])
            if policy is not None:
                return policy.name
            note_once("open_file: %r is not a known read policy, and is passed over", name)
        if names:
            break
    # ABFS then reads exactly the bytes of a positional read, without its buffer.
    return "random" if settings.flag(BUFFERED_PREAD_DISABLE) else None


def _split(settings: Settings) -> Range | None:
    start = _hint(settings.integer(SPLIT_START), minimum=0)
    end = _hint(settings.integer(SPLIT_END), minimum=0)
    if start is None and end is None:
        return None
    if start is not None and end is not None and start > end:
        start = 0
    return start or 0, OFFSET_MAX if end is None else end


def _hint(number: int | None, *, minimum: int) -> int | None:
    """``None`` for a number below the minimum, which is the usual way to say "unknown"."""
    return None if number is None or number < minimum else number


def _at_least_one(settings: Settings, key: str, *, path: str) -> int | None:
    """A limit and not a hint, as in S3A: 0 and negative numbers are refused."""
    number = settings.size(key) if key == PREFETCH_BLOCK_SIZE else settings.integer(key)
    if number is not None and number < 1:
        raise ConfigInvalid(
            f"{key}={settings.text(key)!r} must be at least 1; {PREFETCH_ENABLED}=false switches prefetching off",
            operation="open_file",
            path=path,
        )
    return number


def _block_bytes(settings: Settings, memory_bytes: int, *, path: str) -> int | None:
    """The size of a block; of a larger one than memory holds, ``memory_bytes`` if ``opt`` asked for it."""
    number = _at_least_one(settings, PREFETCH_BLOCK_SIZE, path=path)
    if number is None or number <= memory_bytes or dict(settings.items())[PREFETCH_BLOCK_SIZE].mandatory:
        return number
    text = settings.text(PREFETCH_BLOCK_SIZE) or ""
    warn_once(PREFETCH_BLOCK_SIZE, text, f"more than memory_bytes={memory_bytes}, which is used in its place")
    return memory_bytes


def _readahead_blocks(settings: Settings, block_bytes: int, limits: RuntimeOptions) -> int | None:
    """The blocks that cover the read-ahead, at least the default. S3A means something else by a short range."""
    wanted = _hint(settings.size(READAHEAD_RANGE), minimum=0)
    return None if wanted is None else max(limits.prefetch_blocks, -(-wanted // block_bytes))


# --- what is known of the object --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnownObject:
    """The facts of a status. ``size`` is in bytes; ``None`` if the status has no such fact."""

    size: int | None = None
    etag: str | None = None
    version: str | None = None
    is_directory: bool = False

    def keywords(self) -> dict[str, Any]:
        """The settings as options of ``operator.reader()``."""
        facts = {"size": self.size, "etag": self.etag, "version": self.version}
        return {name: fact for name, fact in facts.items() if fact is not None}


def known_object(status: object | None, *, path: str) -> KnownObject:
    """The facts of a status of the object at ``path``.

    The last elements of the two paths must be equal and nothing else of them is compared: a mount point or a wrapping
    file system legally has another scheme, host and parent. ``ConfigInvalid`` when they differ, ``InvalidType`` for
    a status without a path, or whose size is not an integer.
    """
    if status is None:
        return KnownObject()
    where = _field(status, _PATH_NAMES)
    if where is None:
        raise InvalidType(
            f"a status needs a path and a size, as Metadata and Entry have them; {type(status).__name__} has no path",
            operation="open_file",
            path=path,
        )
    if _last_element(str(where)) != _last_element(path):
        raise ConfigInvalid(
            f"with_status() was given a status of {str(where)!r}, whose last element differs from {path!r}",
            operation="open_file",
            path=path,
        )
    size = _field(status, _SIZE_NAMES)
    if size is not None:
        size = checked_int(size, "the status's size", operation="open_file", path=path)
    return KnownObject(
        size=None if size is None or size < 0 else size,
        etag=_text(_field(status, _ETAG_NAMES)),
        version=_text(_field(status, _VERSION_NAMES)),
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
    """A text that is not empty; other kinds of versions are ignored."""
    return value if isinstance(value, str) and value else None


def _is_directory(status: object, where: str) -> bool:
    kind = str(_field(status, _KIND_NAMES) or "").lower()  # pyarrow's is an enumeration, "FileType.Directory"
    return _field(status, _DIRECTORY_NAMES) is True or kind.endswith("directory") or where.endswith("/")


def _last_element(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


# --- builders ---------------------------------------------------------------------------------------------------------


_BUILD = "write 'reader = await builder.build()' or 'async with builder.build() as reader'"


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
        raise copy_of(self._outcome)

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

    ``opt`` sets a key that may be ignored where it is unknown, ``must`` a key that has to be known. The last call for a
    key decides on its value and on ``opt`` or ``must``. Calls check nothing and return the builder; ``build`` checks
    everything. The keys and what they become: ``aioprefetch.operator.open_file`` and docs/maps/openfile.md.
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
        prefixes are for MapReduce jobs. ``InvalidType`` for anything but a mapping.
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
        except InvalidArgument as error:
            error.operation = "open_file"
            raise error.add_context(options=describe(settings)) from None
        if status.is_directory:
            why = "the status says that a directory is there, no object"
            raise NotFound(why, operation="open_file", path=path)
        check_file(path, "open_file")
        return reader, options


class OpenFileBuilder(KeyedBuilder):
    """Opens one object by Hadoop's keys; made by ``operator.open_file(path)``."""

    if not TYPE_CHECKING:
        __await__, __aenter__ = refused("await", _BUILD), refused("async with", _BUILD)
        __aexit__ = __aenter__

    @frameless
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
            outcome = copy_of(error)
        return PendingReader(outcome, self._described())
