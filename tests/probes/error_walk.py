"""What hangs on an error: all texts in which a secret may stand."""

import pickle
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping

from aioprefetch.errors import Error


def everything(error: BaseException) -> Iterator[str]:
    """An error with all that hangs on it: causes, contexts, groups, arguments, fields, notes, tracebacks, a pickle."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    yield from traceback.format_exception(error)
    # As tools show it that print the variables of frames.
    yield from traceback.TracebackException.from_exception(error, capture_locals=True).format()
    yield repr(pickle.dumps(error))
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield f"{current!r} {current} {current.args!r} {vars(current)!r} {getattr(current, '__notes__', '')}"
        yield from (repr(getattr(value, "__dict__", value)) for value in vars(current).values())
        waiting += [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]


async def raised_by(call: Callable[[], Awaitable[object]]) -> Error | None:
    """What a call raises, if it does. The frames of its traceback begin here, so that none is the test's own."""
    try:
        await call()
    except Error as error:
        return error
    return None


def variables(error: BaseException, *, of: str) -> Iterator[str]:
    """What the frames of an error, and of all that led to it, hold: those of modules below the directory ``of``.

    The text of each variable, and of what is in it where that is a container, as tools show it.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        waiting += [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]
        for frame, line in traceback.walk_tb(current.__traceback__):
            where = frame.f_code.co_filename
            if not where.startswith(of) and not where.startswith("<"):
                continue
            for name, value in list(frame.f_locals.items()):
                for text in _texts(value):
                    yield f"{where}:{line} in {frame.f_code.co_qualname}, {name}: {text}"


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in list(value.items()):
            yield from (*_texts(name), *_texts(one))
    elif isinstance(value, list | tuple | set | frozenset):
        for one in list(value):
            yield from _texts(one)
    else:
        yield value.decode("latin-1") if isinstance(value, bytes | bytearray) else repr(value)
