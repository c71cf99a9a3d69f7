"""The operators of a source in this process: made from plain settings, one for each store, warm for the next task.

Literal keys travel in the settings, inside pickles of Spark's own: operators leave theirs behind when they are pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

from aioprefetch.errors import ConfigInvalid, IsADirectory, NotADirectory, NotFound, PermissionDenied, Unsupported
from aioprefetch.operator.listing import literal_glob
from aioprefetch.operator.operator import Operator
from aioprefetch.spark import worker
from aioprefetch.spark.settings import SourceSettings
from aioprefetch.spark.source_url import SourceUrl


def source_operator(settings: SourceSettings, root: str | None = None) -> Operator:
    """The operator at the root of a source, or at ``root``."""
    return operator_at(root or settings.location.root, settings.operator)


def state_operator(settings: SourceSettings) -> Operator:
    """The operator whose root is the state's directory. ``ConfigInvalid`` names what sets it when it is missing."""
    if settings.state_location is None:
        raise ConfigInvalid(
            "a stream needs the option stateLocation: a directory of its own, kept as long as the checkpoint and best "
            "inside it, such as <checkpointLocation>/aioprefetch. aioprefetch.spark.stream(spark, url, "
            "checkpoint=...) sets it",
            operation="configure",
        )
    return operator_at(settings.state_location, settings.state_operator)


def operator_at(root: str, options: Mapping[str, Any]) -> Operator:
    """The operator of this process for a root and options of ``Operator.from_uri``."""
    key = hashlib.sha256(pickle.dumps((root, sorted(options.items())))).digest()
    return worker.warm_operator(key, lambda: _made(root, options)).operator


def _made(root: str, options: Mapping[str, Any]) -> Operator:
    return Operator.from_uri(root, **worker.with_memory(options))


@contextlib.contextmanager
def explaining(settings: SourceSettings) -> Iterator[None]:
    """Say in an error what the user may not know of: that keys of the session were left out, or a schema inferred.

    With ``worker.short_errors``.
    """
    with worker.short_errors(), _hints(settings):
        yield


@contextlib.contextmanager
def _hints(settings: SourceSettings) -> Iterator[None]:
    try:
        yield
    except PermissionDenied as error:
        if settings.left_out is not None:
            error.add_context(hint=settings.left_out)
        raise
    except Unsupported as error:
        if settings.is_inferred and "field" in error.context:
            error.add_context(
                hint="the schema was inferred from some of the files: raise inferSampleFiles or inferSampleBytes, give "
                "a schema, name columns, or set unknownFields"
            )
        raise


async def locate(settings: SourceSettings) -> SourceUrl:
    """The location of a batch: of a URL that may name one object, a look at the store tells whether it does."""
    location = settings.location
    if location.name is None or location.parent is None:
        return location
    try:
        found = await operator_at(location.parent, settings.operator).stat(location.name)
    except (NotFound, IsADirectory, NotADirectory, PermissionDenied):
        return location
    return location if found.kind == "directory" else SourceUrl(location.parent, literal_glob(location.name))
