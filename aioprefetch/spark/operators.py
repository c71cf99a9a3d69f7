"""The operators of a source in this process: made from plain settings, one for each store, warm for the next task.

Literal keys travel in the settings, inside pickles of Spark's own: operators leave theirs behind when they are pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from aioprefetch.errors import (
    ConfigInvalid,
    Error,
    IsADirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
    Unsupported,
)
from aioprefetch.layers import RetryLayer
from aioprefetch.layers.throttle import RequestRateLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import shared_copy
from aioprefetch.plan.patterns import literal_glob
from aioprefetch.source.polling import outlast, patient
from aioprefetch.source.reading import reason_of
from aioprefetch.spark import worker
from aioprefetch.spark.options import SOURCE_OPTIONS
from aioprefetch.spark.settings import SourceSettings, SourceUrl
from aioprefetch.sync import run

T = TypeVar("T")

# The planned version is gone, so that the same batch fails each time.
_CHANGED = (
    "onChanged=skip with overwrites=reread lets a stream go on, and brings the new version with a later batch; a batch"
    " that is started again lists it again"
)
_LOCAL_CHANGED = f"{_CHANGED}. A program that is still writing the file should write it elsewhere, then rename it"
_INFERRED = (
    "the schema was inferred from some of the files: raise inferSampleFiles or inferSampleBytes, give a schema, name "
    "columns, or set unknownFields"
)
# Names of fields in messages of the engine, where an option of Spark has another name.
_NAMES = {
    option.row.target: option.name
    for option in reversed(list(SOURCE_OPTIONS.values()))
    if option.group in ("format", "failure") and "_" in option.row.target
}


def source_operator(settings: SourceSettings) -> Operator:
    """The operator at the root of a source."""
    return operator_at(settings.location.root, settings.operator, settings.requests_per_second)


# The time is the limit of a task's requests, not their number: a task that fails begins again at its first file.
TASK_ATTEMPTS_MAX = 20


def task_operator(settings: SourceSettings, root: str) -> Operator:
    """The operator of a task at ``root``, with its share of ``requestsPerSecond``."""
    rate = settings.requests_per_second
    share = None if rate is None else rate / settings.partitioning.slots
    return operator_at(root, {"attempts_max": TASK_ATTEMPTS_MAX, **settings.operator}, share)


def state_operator(settings: SourceSettings) -> Operator:
    """The operator at the state's directory. ``ConfigInvalid`` names the option if it is missing."""
    if settings.state_location is None:
        raise ConfigInvalid(
            "a stream needs the option stateLocation: a directory of its own, kept as long as the checkpoint and best "
            "inside it, such as <checkpointLocation>/aioprefetch. aioprefetch.spark.stream(spark, url, "
            "checkpoint=...) sets it",
            operation="configure",
        )
    return operator_at(settings.state_location, settings.state_operator)


def planning_operator(settings: SourceSettings) -> Operator:
    """The operator at the root of a source, which repeats its requests more often: many of them must all succeed."""
    return patient(source_operator(settings), settings.listing.retry_seconds)


def operator_at(root: str, options: Mapping[str, Any], requests_per_second: float | None = None) -> Operator:
    """The operator of this process for a root and options of ``Operator.from_uri``."""
    key = hashlib.sha256(pickle.dumps((root, sorted(options.items()), requests_per_second))).digest()
    return worker.warm_operator(key, lambda: _new_operator(root, options, requests_per_second)).operator


def _new_operator(root: str, options: Mapping[str, Any], requests_per_second: float | None) -> Operator:
    operator = Operator.from_uri(root, **worker.with_memory(options))
    if requests_per_second is not None:
        operator = operator.layer(RequestRateLayer(requests_per_second), inside=RetryLayer)
    return shared_copy(operator) or operator


@contextlib.contextmanager
def explaining(settings: SourceSettings) -> Iterator[None]:
    """Add a hint to an error of the engine, in the words of Spark's options. Includes ``worker.short_errors``."""
    with worker.short_errors():
        try:
            yield
        except Error as error:
            hint = _hint(error, settings)
            if hint is not None:
                error.add_context(hint=hint)
            raise


def _hint(error: Error, settings: SourceSettings) -> str | None:
    if isinstance(error, PermissionDenied):
        is_of_one = "file" in error.context and reason_of(error) == "unreadable"
        return settings.left_out or ("onUnreadable=skip or quarantine leaves such files out" if is_of_one else None)
    if isinstance(error, Unsupported) and settings.is_inferred and "field" in error.context:
        return _INFERRED
    file = error.context.get("file")
    if file is not None and reason_of(error) == "changed":
        return _LOCAL_CHANGED if str(file).startswith("file:") else _CHANGED
    named = [field for field in _NAMES if re.search(rf"\b{field}\b", error.message)]
    return ", ".join(f"{field} is the option {_NAMES[field]}" for field in named) or None


def outlasted(settings: SourceSettings, call: Callable[[], Awaitable[T]]) -> T:
    """The result of a call of the planning, repeated for ``listRetrySeconds`` while a store throttles or is down."""
    return run(outlast(call, settings.listing.retry_seconds))


async def locate(settings: SourceSettings) -> SourceUrl:
    """The location of a batch. If its URL may name one object, a ``stat`` of the store decides."""
    location = settings.location
    if location.name is None or location.parent is None:
        return location
    try:
        metadata = await operator_at(location.parent, settings.operator).stat(location.name)
    except (NotFound, IsADirectory, NotADirectory, PermissionDenied):
        return location
    return location if metadata.kind == "directory" else SourceUrl(location.parent, literal_glob(location.name))
