"""The recipe of the fs service."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import given
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs.accessor import FsAccessor
from aioprefetch.services.fs.options import FsOptions

if TYPE_CHECKING:
    from aioprefetch.services.uri_options import FsUriOptions


@dataclass(frozen=True, slots=True)
class Fs(FsOptions):
    """Files below the directory ``root``, an absolute path; it is made at the first write.

    Keys: runs of ``/`` count as one and a leading ``/`` as none. The ETag is made of inode, size and modification
    time, so it changes with a copy of the file system. User metadata is ``Unsupported``; content type, encoding,
    disposition and cache control are not stored, without an error. Raises ``ConfigInvalid`` for a root that is
    relative or no path.

    Parameters
    ----------
    root
        Nothing outside it is ever read, written or listed, for any key and any links below it.
        Links in ``root`` itself are followed.
    follow_symlinks
        Follow links below the root whose target lies below the root too, and list links to files. Weaker
        than the default, which refuses every link: a user who can make links chooses which file under the root a key
        means.
    fsync
        Force each written file and its directory to the device before the write ends, and the directories of a rename.
    """

    schemes: ClassVar[tuple[str, ...]] = ("file",)

    @classmethod
    def from_uri(cls, uri: str, **options: Unpack[FsUriOptions]) -> Fs:
        """The recipe for ``file:///root``."""
        return cls(uri.partition("://")[2], **given(options))

    def build(self, runtime: Runtime) -> Accessor:
        return FsAccessor(self, runtime)
