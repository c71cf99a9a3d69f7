"""The options of the fs service, and their checks."""

from __future__ import annotations

import os

from aioprefetch.errors import ConfigInvalid
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.values import Capability, ServiceInfo

CAPABILITY = Capability(
    read=True,
    read_range=True,
    read_suffix=True,
    read_if_match=True,
    read_if_none_match=True,
    read_if_modified_since=True,
    read_if_unmodified_since=True,
    is_local=True,
    stat=True,
    stat_directory=True,
    list=True,
    list_recursive=True,
    list_ordered=True,
    list_start_after=True,
    write=True,
    write_stream=True,
    write_if_match=True,
    write_if_none_match=True,
    write_if_not_exists=True,
    copy=True,
    copy_if_match=True,
    copy_if_not_exists=True,
    rename=True,
    delete=True,
    delete_paths_max=1000,
    delete_if_match=True,
    create_dir=True,
)


@dataclass(frozen=True, slots=True, init=False)
class FsOptions:
    """The fields of the recipe ``Fs``, which documents them. Raises ``ConfigInvalid`` for options that cannot work."""

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
