"""``ap.sync.Path``: the verbs of ``ap.Path``, each run on the loop thread while the caller waits."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

from aioprefetch import path as awaitable
from aioprefetch.operator.shared import operator_at
from aioprefetch.sync.blocking_operator import BlockingOperator
from aioprefetch.sync.iteration import BlockingListing

if TYPE_CHECKING:
    from aioprefetch.operator.options import AnyFileOptions

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    verb: Callable[Concatenate[awaitable.Path, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Path, P], T]:
    @wraps(verb)
    def run(self: Path, /, *args: P.args, **kwargs: P.kwargs) -> T:
        operator, key = self.operator, self.key
        made: Any = operator.run_verb(verb.__name__, key, lambda op: verb(awaitable.Path.of(op, key), *args, **kwargs))
        return cast("T", self.of(operator, made.key) if isinstance(made, awaitable.Path) else made)

    return run


class Path(awaitable.KeyPath):
    """``ap.sync.Path("s3://bucket/key", **options)`` or ``blocking_operator / "key"``; see ``ap.Path``."""

    __slots__ = ()
    operator: BlockingOperator

    @staticmethod
    def _operator_at(uri: str, options: Mapping[str, Any]) -> BlockingOperator:
        return BlockingOperator(operator_at(uri, options)[0])

    read_bytes, read_text = _blocking(awaitable.Path.read_bytes), _blocking(awaitable.Path.read_text)
    write_bytes, write_text = _blocking(awaitable.Path.write_bytes), _blocking(awaitable.Path.write_text)
    stat, exists = _blocking(awaitable.Path.stat), _blocking(awaitable.Path.exists)
    is_file, is_dir = _blocking(awaitable.Path.is_file), _blocking(awaitable.Path.is_dir)
    unlink = _blocking(awaitable.Path.unlink)
    rename: Callable[..., Path] = _blocking(awaitable.Path.rename)
    replace: Callable[..., Path] = _blocking(awaitable.Path.replace)

    def open(self, mode: str = "rb", **options: Unpack[AnyFileOptions]) -> Any:
        """A file over the object; modes (of text too) and options as in ``BlockingOperator.open``."""
        return self.operator.open(self.key, mode, **options)

    def iterdir(self) -> Iterator[Self]:
        """The entries of the directory. The key of a directory ends with ``/``."""
        return self.glob("*")

    def glob(self, pattern: str) -> Iterator[Self]:
        """The matches below the directory, as ``ap.Path.glob``."""
        listing: Any = awaitable.Path.of(self.operator.operator, self.key).glob(pattern)
        found: Any = BlockingListing(listing)
        return (self.of(self.operator, path.key) for path in found)
