"""Why a path is most likely wrong, for the errors of objects that are missing."""

from __future__ import annotations

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import Error
from aioprefetch.values import ServiceInfo, StatRequest

_PATTERN = "a path is taken as it stands: list(prefix, glob=...) finds what matches a pattern"


def path_hint(path: str, service: ServiceInfo) -> str:
    """Why a path is most likely wrong: it is a URL or a pattern, or begins with a slash or the name of its bucket.

    Such keys may exist, so none is refused.
    """
    key, mark, version = path.partition("?versionId=")
    if mark:
        return f"a path does not end with a version: this may be {key!r} with version={version!r} (fsspec: version_id=)"
    scheme, separator, rest = path.partition("://")
    root = service.url.partition("://")[2].strip("/")
    if separator and scheme.isalnum():
        what, relative = "is a URL", rest.removeprefix(f"{root}/")
        relative = "" if relative == rest else relative
    elif path.startswith("/"):
        what, relative = "begins with a slash", path.lstrip("/").removeprefix(f"{root}/")
    else:
        start = next((f"{name}/" for name in (root, service.name) if name and path.startswith(f"{name}/")), "")
        if not start:
            return _PATTERN if any(character in path for character in "*?[") else ""
        what, relative = f"begins with {start}", path.removeprefix(start)
    meant = f", so this may be {relative!r}" if relative else ""
    return f"paths are relative to {service.location}, and this one {what}{meant}"


def hint_at_path(error: Error, service: ServiceInfo) -> Error:
    """The error of something that is missing, with its store, and the hint for its path if there is one."""
    error.add_context(service=service.location)
    hint = path_hint(error.path, service)
    return error.add_context(hint=hint) if hint else error


async def hint_at_directory(accessor: Accessor, error: Error, path: str, advice: str) -> None:
    """Add ``advice`` to the error of a missing object where a directory has its name, which one request tells."""
    if not accessor.capability.stat_directory:
        return
    try:
        await accessor.stat(StatRequest(path=f"{path}/"))
    except Error:
        return
    error.add_context(hint=f"{path!r} is a directory: {advice}")
