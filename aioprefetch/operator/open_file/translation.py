"""From keys to the options of ``operator.reader()``: which are known, which are refused, and which wins."""

from __future__ import annotations

import difflib
from typing import Any

from aioprefetch.errors import ConfigInvalid, Unsupported
from aioprefetch.operator.open_file import keys
from aioprefetch.operator.open_file.settings import Settings, note_once
from aioprefetch.ranges import OFFSET_MAX, Range
from aioprefetch.reader.policy import listed_policy
from aioprefetch.runtime.options import RuntimeOptions

# S3A's own name for what it does by default.
_POLICY_ALIASES = {"normal": "adaptive"}


def reader_keywords(settings: Settings, *, limits: RuntimeOptions, path: str) -> dict[str, Any]:
    """The options that the settings set. ``limits`` are those of the operator, for what is counted in blocks.

    Raises ``ConfigInvalid`` for a mandatory key that nobody knows and for a block size or count below 1,
    ``Unsupported`` for S3 Select.
    """
    check_keys(settings, path=path)
    found: dict[str, Any] = {
        "policy": _policy(settings),
        "size": _hint(settings.integer(keys.LENGTH), least=0),
        "split": _split(settings),
        "buffer_bytes": _hint(settings.size(keys.BUFFER_SIZE), least=1),
        "footer_cache": settings.flag(keys.FOOTER_CACHE),
        "prefetch_enabled": settings.flag(keys.PREFETCH_ENABLED),
        "block_bytes": _at_least_one(settings, keys.PREFETCH_BLOCK_SIZE, path=path),
        "prefetch_blocks": _at_least_one(settings, keys.PREFETCH_BLOCK_COUNT, path=path),
    }
    if found["prefetch_blocks"] is None:
        found["prefetch_blocks"] = _readahead_blocks(settings, found["block_bytes"] or limits.block_bytes, limits)
    return {name: value for name, value in found.items() if value is not None}


def check_keys(settings: Settings, *, path: str) -> None:
    """Refuse what would give other bytes than asked for, and what is mandatory but unknown."""
    for key, setting in settings.items():
        if key.startswith(keys.SELECT_PREFIX):
            raise Unsupported(
                f"{key!r} asks for S3 Select, and readers give the bytes of the object as they are: leave it out",
                operation="open_file",
                path=path,
            )
        if key in keys.KEYS:
            continue
        if setting.mandatory:
            # The value is left out: the key may be one of credentials.
            raise ConfigInvalid(
                f"must() was given {key!r}, which is no known key{_nearest(key)}: set it by opt(), which ignores what"
                f" is unknown, or use one of {', '.join(sorted(keys.KEYS))}",
                operation="open_file",
                path=path,
            )
        note_once("open_file: %r is no known key, and opt() ignores it", key)


def _nearest(key: str) -> str:
    """The known key that may have been meant, as a question."""
    found = difflib.get_close_matches(key, keys.KEYS, n=1, cutoff=0.8)
    return f" (did you mean {found[0]!r}?)" if found else ""


def describe(settings: Settings) -> str:
    """The known keys that are set, as ``key='value'``: whose error it is. No other value may be shown."""
    return ", ".join(f"{key}={settings.text(key)!r}" for key, _ in settings.items() if key in keys.KEYS)


def _policy(settings: Settings) -> str | None:
    """The first recognised name. A vendor's key counts only where the ones before it say nothing at all."""
    for key in (keys.READ_POLICY, keys.INPUT_FADVISE, keys.EXPERIMENTAL_FADVISE):
        names = settings.names(key)
        for name in names:
            policy = listed_policy([_POLICY_ALIASES.get(name, name)])
            if policy is not None:
                return policy.name
            note_once("open_file: %r is no known read policy, and is passed over", name)
        if names:
            break
    # ABFS then asks for exactly what a positional read wants, past its buffer.
    return "random" if settings.flag(keys.BUFFERED_PREAD_DISABLE) else None


def _split(settings: Settings) -> Range | None:
    start = _hint(settings.integer(keys.SPLIT_START), least=0)
    end = _hint(settings.integer(keys.SPLIT_END), least=0)
    if start is None and end is None:
        return None
    if start is not None and end is not None and start > end:
        start = 0
    return start or 0, OFFSET_MAX if end is None else end


def _hint(number: int | None, *, least: int) -> int | None:
    """Below what can be meant a number is the usual way to say "unknown"."""
    return None if number is None or number < least else number


def _at_least_one(settings: Settings, key: str, *, path: str) -> int | None:
    """As S3A has it: no hint but a limit, so 0 and negative numbers are refused."""
    number = settings.size(key) if key == keys.PREFETCH_BLOCK_SIZE else settings.integer(key)
    if number is not None and number < 1:
        raise ConfigInvalid(
            f"{key}={settings.text(key)!r} must be at least 1; {keys.PREFETCH_ENABLED}=false switches prefetching off",
            operation="open_file",
            path=path,
        )
    return number


def _readahead_blocks(settings: Settings, block_bytes: int, limits: RuntimeOptions) -> int | None:
    """At least so many bytes ahead. A short range means something else at S3A, and lowers nothing here."""
    wanted = _hint(settings.size(keys.READAHEAD_RANGE), least=0)
    return None if wanted is None else max(limits.prefetch_blocks, -(-wanted // block_bytes))
