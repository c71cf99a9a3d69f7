"""The recipe of the fs service."""

from __future__ import annotations

import os
from dataclasses import dataclass

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import ConfigInvalid
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs.accessor import FsAccessor
from aioprefetch.services.fs.confined import ConfinedRoot
from aioprefetch.values import Capability, ServiceInfo

CAPABILITY = Capability(
    read=True,
    read_range=True,
    read_suffix=True,
    read_if_match=True,
    read_if_none_match=True,
    stat=True,
    stat_directory=True,
    list=True,
    list_recursive=True,
    list_start_after=True,
    write=True,
    write_stream=True,
    write_if_match=True,
    write_if_not_exists=True,
    copy=True,
    delete=True,
    delete_paths_max=1000,
    create_dir=True,
)


@dataclass(frozen=True, slots=True, init=False)
class Fs:
    """Files below the directory ``root``, an absolute path; it is made at the first write.

    Parameters
    ----------
    root
        Nothing outside it is ever read, written or listed, whatever a key holds and whatever links lie below it.
        Links in ``root`` itself are followed.
    follow_symlinks
        Follow links below the root whose target lies below the root too. Weaker than the default, which refuses
        every link: whoever can make links chooses which file under the root a key means.
    fsync
        Force each written file and its directory to the device before the write ends.

    Keys: runs of ``/`` count as one and a leading ``/`` as none. The ETag is made of inode, size and modification
    time, so it changes with a copy of the file system. User metadata is ``Unsupported``; content type, encoding,
    disposition and cache control are not stored, without an error. Raises ``ConfigInvalid`` for a root that is
    relative or no path.
    """

    root: str
    follow_symlinks: bool = False
    fsync: bool = False

    def __init__(self, root: str | os.PathLike[str], *, follow_symlinks: bool = False, fsync: bool = False) -> None:
        object.__setattr__(self, "root", _checked_root(root))
        object.__setattr__(self, "follow_symlinks", _checked_flag("follow_symlinks", follow_symlinks))
        object.__setattr__(self, "fsync", _checked_flag("fsync", fsync))

    @property
    def info(self) -> ServiceInfo:
        return ServiceInfo(scheme="file", root=self.root)

    @property
    def capability(self) -> Capability:
        return CAPABILITY

    def build(self, runtime: Runtime) -> Accessor:
        root = ConfinedRoot(self.root, follow_symlinks=self.follow_symlinks)
        return FsAccessor(self.info, self.capability, runtime, root, fsync=self.fsync)


def _checked_root(root: str | os.PathLike[str]) -> str:
    text = os.fspath(root) if isinstance(root, str | os.PathLike) else root
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigInvalid(f"root must be the path of a directory as text, not {text!r}", operation="configure")
    if not text.startswith("/"):
        raise ConfigInvalid(
            f"root must be an absolute path, not {text!r}: a relative one would mean another directory in each process",
            operation="configure",
        )
    names = text.split("/")
    if ".." in names:
        raise ConfigInvalid(f"root must not hold '..' segments: {text!r}", operation="configure")
    return "/" + "/".join(name for name in names if name not in ("", "."))


def _checked_flag(name: str, value: bool) -> bool:
    if type(value) is not bool:
        raise ConfigInvalid(f"{name} must be True or False, not {value!r}", operation="configure")
    return value
