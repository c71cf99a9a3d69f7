"""The file systems of single schemes: whose paths begin with a bucket, a host or the root of this machine's files.

``register`` gives them to fsspec for its URLs.
"""

from __future__ import annotations

import os
from typing import Any

from fsspec.registry import register_implementation
from fsspec.utils import stringify_path

from aioprefetch.errors import ConfigInvalid, InvalidType
from aioprefetch.fsspec.filesystem import AioPrefetchFileSystem
from aioprefetch.fsspec.kept import Info
from aioprefetch.fsspec.tree import VERSION_MARK
from aioprefetch.fsspec.verbs import blocking
from aioprefetch.operator.from_uri import split_url
from aioprefetch.verbs.listing import pending_uploads

_OWN = "aioprefetch"


class S3FileSystem(AioPrefetchFileSystem):
    """``s3://bucket/key``, with the words of s3fs for options, and its defaults."""

    # Ours come first: they lead here in every process, whichever protocols were taken over there.
    protocol = ("aioprefetch+s3", "aioprefetch+s3a", "s3", "s3a")
    scheme = "s3"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"version_aware": True} if VERSION_MARK in path else {}

    def shown(self, info: Info) -> Info:
        """An entry under s3fs's names too."""
        return {**info, "Key": info["name"], "Size": info["size"]}

    async def _ls(
        self, path: str, detail: bool = False, refresh: bool = False, versions: bool = False, **options: Any
    ) -> list[Any]:
        return await super()._ls(path, detail, refresh, versions, **options)

    def split_path(self, path: str) -> tuple[str, str, str | None]:
        """The bucket, the key and the version of a path."""
        bucket, _, key = self._strip_protocol(path).partition("/")
        key, _, version = key.partition(VERSION_MARK)
        return bucket, f"{key}/" if key and path.endswith("/") else key, (self.version_aware and version) or None

    async def _list_multipart_uploads(self, bucket: str) -> list[dict[str, Any]]:
        """The uploads in a bucket that were neither completed nor aborted."""
        found = pending_uploads(self.place_of(bucket).operator.accessor(), "")
        return [{"Key": each.path, "UploadId": each.upload_id, "Initiated": each.started} async for each in found]

    async def _clear_multipart_uploads(self, bucket: str) -> None:
        """Abort the uploads in a bucket, unfinished writes included."""
        await self.place_of(bucket).operator.abort_uploads()

    async def _is_bucket_versioned(self, bucket: str) -> bool:
        """Whether a bucket keeps the versions of its objects."""
        is_versioned: bool = await self._stores.buckets(self.place_of(bucket).operator, "stat").is_versioned()
        return is_versioned

    list_multipart_uploads = blocking(_list_multipart_uploads)
    clear_multipart_uploads = blocking(_clear_multipart_uploads)
    is_bucket_versioned = blocking(_is_bucket_versioned)


class GSFileSystem(AioPrefetchFileSystem):
    """``gs://bucket/key``."""

    protocol = ("aioprefetch+gs", "aioprefetch+gcs", "gs", "gcs")
    scheme = "gs"


class AzureFileSystem(AioPrefetchFileSystem):
    """``az://container/key``, or ``abfs://container/key``."""

    protocol = ("aioprefetch+az", "aioprefetch+abfs", "az", "abfs", "abfss")
    scheme = "az"


class MemoryFileSystem(AioPrefetchFileSystem):
    """``aioprefetch+memory://name/key``: the named stores in this process."""

    protocol = ("aioprefetch+memory",)
    scheme = "memory"


class LocalFileSystem(AioPrefetchFileSystem):
    """``aioprefetch+file:///directory/file``; links are followed."""

    protocol = ("aioprefetch+file",)
    scheme = "file"
    root_marker = "/"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path).removeprefix("aioprefetch+file://").removeprefix("aioprefetch+file::")
        return os.path.abspath(path)

    def split(self, path: str) -> tuple[str, str, str]:
        """The root of the machine, and the path below it."""
        return *split_url(f"file://{path}", path_required=False, at_origin=True), "/"


class HttpFileSystem(AioPrefetchFileSystem):
    """``https://host/path``: paths are URLs, and there is nothing to list or to write."""

    protocol = ("aioprefetch+https", "aioprefetch+http", "https", "http")
    scheme = "https"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return stringify_path(path).removeprefix("aioprefetch+")

    @classmethod
    def _parent(cls, path: str) -> str:
        path = cls._strip_protocol(path).rstrip("/")
        above = path.rpartition("/")[0]
        return above if "://" in above else ""

    def split(self, path: str) -> tuple[str, str, str]:
        """The origin with the query, and the path on it."""
        return *split_url(path, path_required=False, at_origin=True), ""

    def unstrip_protocol(self, name: str) -> str:
        """The URL itself."""
        return str(self._strip_protocol(name))


BY_PROTOCOL: dict[str, type[AioPrefetchFileSystem]] = {
    protocol: cls
    for cls in (
        *(AioPrefetchFileSystem, S3FileSystem, GSFileSystem, AzureFileSystem),
        *(MemoryFileSystem, LocalFileSystem, HttpFileSystem),
    )
    for protocol in cls.protocol
}


def register(*protocols: str) -> None:
    """Let aioprefetch serve URLs of these protocols in this process: ``register("s3", "s3a", "gs", "http")``.

    Without protocols: ``aioprefetch+s3`` and the others that begin with our name. Where the package is installed fsspec
    finds these by itself; where it only stands on the path it does not.

    Workers of dask that get URLs need the call too; workers that get file systems or open files do not.
    File systems that exist already stay what they are. ``ConfigInvalid`` for a protocol that we do not serve,
    ``InvalidType`` for anything else.
    """
    for protocol in protocols:
        if not isinstance(protocol, str):
            raise InvalidType(
                f"protocols are texts, one by one, such as register('s3', 's3a'), not {protocol!r}",
                operation="configure",
            )
        if protocol not in BY_PROTOCOL:
            known = ", ".join(name for name in BY_PROTOCOL if not name.startswith(_OWN))
            raise ConfigInvalid(
                f"{protocol!r} is not a protocol that can be taken over; there are {known}", operation="configure"
            )
    for protocol in protocols or (name for name in BY_PROTOCOL if name.startswith(_OWN)):
        register_implementation(protocol, BY_PROTOCOL[protocol], clobber=True)
