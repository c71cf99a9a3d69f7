"""The options of the fs service."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, field

from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import FLAG, Checked, check, in_uri, option
from aioprefetch.runtime.options import checked_directory
from aioprefetch.values import Capability, ServiceInfo

_CAN = (
    *("read", "read_range", "read_suffix", "read_if_match", "read_if_none_match"),
    *("read_if_modified_since", "read_if_unmodified_since", "stat", "stat_directory"),
    *("list", "list_recursive", "list_ordered", "list_start_after", "is_local"),
    *("write", "write_stream", "write_if_match", "write_if_none_match", "write_if_not_exists"),
    *("copy", "copy_if_match", "copy_if_not_exists", "rename", "delete", "delete_if_match", "create_dir"),
)
CAPABILITY = Capability(**dict.fromkeys(_CAN, True), delete_paths_max=1000)


@dataclass(frozen=True, slots=True)
class FsOptions:
    """The fields of the recipe ``Fs``, which documents them. Raises ``ConfigInvalid`` for options that cannot work."""

    root: str | os.PathLike[str] = field(metadata=in_uri(Checked(checked_directory)))
    _: KW_ONLY
    follow_symlinks: bool = option(False, FLAG)
    fsync: bool = option(False, FLAG, given="recipe")

    def __post_init__(self) -> None:
        check(self)

    @property
    def directory(self) -> str:
        """``root`` as text."""
        return os.fspath(self.root)

    @property
    def info(self) -> ServiceInfo:
        return ServiceInfo(scheme="file", root=self.directory)

    def file_states(self) -> object:
        """Nothing: no file decides about the recipe."""
        return ()

    @property
    def capability(self) -> Capability:
        return CAPABILITY
