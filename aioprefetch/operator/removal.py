"""Objects and uploads removed, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import Error, InvalidType
from aioprefetch.operator.arguments import checked_path
from aioprefetch.operator.listing import Listed, list_literally
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import AbortUploadRequest, DeleteRequest, ListUploadsRequest

# Paths are sent in batches of this many; the layers cut them to the maximum of the service.
DELETE_PATHS = 1000


async def delete_paths(accessor: Accessor, paths: Iterable[str]) -> None:
    """Delete objects, all that can be deleted. The error at the end has ``failures``: each path left, and why.

    A request that fails as a whole does not end it, for another one may reach the store, or be allowed. Only after two
    in a row that the store did not answer the rest is left, and named with the error of the second.
    """
    if not isinstance(paths, Iterable) or isinstance(paths, bytes | bytearray | Mapping):
        raise InvalidType(f"a path or an iterable of paths is needed, not {type(paths).__name__}", operation="delete")
    checked = [checked_path(path, "delete") for path in paths]
    first: Error | None = None
    failures: dict[str, str] = {}
    unanswered = 0
    for start in range(0, len(checked), DELETE_PATHS):
        batch = tuple(checked[start : start + DELETE_PATHS])
        try:
            await accessor.delete(DeleteRequest(path=batch[0], paths=batch))
        except Error as error:
            named = error.context.get("failures")
            first = first or error
            failures |= named if isinstance(named, Mapping) else dict.fromkeys(batch, error.kind)
            unanswered = unanswered + 1 if named is None and error.status != "permanent" else 0
            if unanswered == 2:
                failures |= dict.fromkeys(checked[start + DELETE_PATHS :], error.kind)
                break
        else:
            unanswered = 0
    if first is not None:
        first.context |= {"failed": len(failures), "of": len(checked), "failures": failures}
        raise first


async def delete_below(operator: Listed, prefix: str) -> None:
    """Delete every object below a directory, and the directory. What cannot be deleted ends it."""
    accessor = operator.accessor()
    paths: list[str] = []
    async for entry in list_literally(operator, prefix, recursive=True):
        paths.append(entry.path)
        if len(paths) == DELETE_PATHS:
            await delete_paths(accessor, paths)
            paths.clear()
    await delete_paths(accessor, paths)
    if prefix:  # By itself and last: some stores refuse to delete a directory together with its contents.
        await delete_paths(accessor, [prefix])


async def abort_uploads(accessor: Accessor, runtime: Runtime, prefix: str, older_than_seconds: float | None) -> int:
    """Abort the uploads below a prefix that began so long ago; returns their number."""
    before = None if older_than_seconds is None else runtime.wall_now() - older_than_seconds
    token, aborted = None, 0
    while True:
        page = await accessor.list_uploads(ListUploadsRequest(path=prefix, page_token=token))
        for upload in page.uploads:
            if before is not None and (upload.started is None or upload.started.timestamp() > before):
                continue
            await accessor.abort_upload(AbortUploadRequest(path=upload.path, upload_id=upload.upload_id))
            aborted += 1
        token = page.next_token
        if token is None:
            return aborted
