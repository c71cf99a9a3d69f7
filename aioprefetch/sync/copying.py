"""``ap.sync.copy``: objects copied without an event loop of the caller's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from aioprefetch.credentials import frameless
from aioprefetch.operator.copying import Place
from aioprefetch.operator.copying import copy as copy_here
from aioprefetch.ranges import ByteCount
from aioprefetch.sync.blocking_operator import BlockingOperator
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.verbs.progress import CopyCallback, CopyReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioprefetch.operator.options import UriOptions
    from aioprefetch.transfer.many import SkipSame
    from aioprefetch.verbs.requests import ObjectOptions

SyncPlace: TypeAlias = Place | tuple[BlockingOperator, str]


@frameless
def copy(
    src: SyncPlace,
    dst: SyncPlace,
    *,
    glob: str | None = None,
    concurrency: int | None = None,
    on_progress: CopyCallback | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    skip_same: SkipSame = None,
    overwrite: bool = True,
    stop_at_failure: bool = False,
    delete_extra: bool = False,
    delete_max: float | None = None,
    dry_run: bool = False,
    literal: bool = False,
    bytes_per_second: ByteCount | None = None,
    write_options: ObjectOptions | None = None,
    src_options: UriOptions | None = None,
    dst_options: UriOptions | None = None,
) -> CopyReport:
    """Copy an object, a directory or what a glob matches, as ``aioprefetch.copy`` does, whose options these are.

    The operator of a pair may be a ``BlockingOperator``, too; one at the destination reads by ``read_at`` what is there
    afterwards.

    ``on_progress`` is called on the loop thread. An interruption (Ctrl-C) cancels the copy and waits a few seconds for
    its clean-up. Objects that were copied stay, and so does the hidden file of a large object that was half received
    into a local file; nothing else is left.
    """
    source, _ = _asynchronous(src)
    target, changed = _asynchronous(dst)
    try:
        return loop_thread().run(
            copy_here(
                source,
                target,
                glob=glob,
                concurrency=concurrency,
                on_progress=on_progress,
                include=include,
                exclude=exclude,
                skip_same=skip_same,
                overwrite=overwrite,
                stop_at_failure=stop_at_failure,
                delete_extra=delete_extra,
                delete_max=delete_max,
                dry_run=dry_run,
                literal=literal,
                bytes_per_second=bytes_per_second,
                write_options=write_options,
                src_options=src_options,
                dst_options=dst_options,
            )
        )
    finally:  # After a failure too: some of it was copied.
        if changed is not None:
            changed.drop_readers(target[1])


def _asynchronous(place: Any) -> tuple[Any, BlockingOperator | None]:
    """A place without an operator that blocks, and that operator."""
    if isinstance(place, tuple | list) and len(place) == 2 and isinstance(place[0], BlockingOperator):
        return (place[0].operator, place[1]), place[0]
    return place, None
