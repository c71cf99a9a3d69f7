"""The opener of GDAL, which finds out by ``open`` whether a file is there."""

from __future__ import annotations

from typing import Any

from aioprefetch.errors import Error, NotFound, Unsupported


class GdalOpener:
    """A file system as ``rasterio.open(path, opener=...)`` takes it: ``open`` reads, and fails where nothing is."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """A file to read. ``NotFound`` if it does not exist, ``Unsupported`` for other modes."""
        if not mode.startswith("r"):
            why = "GDAL seeks as it writes: write to a rasterio.MemoryFile, and pipe its bytes"
            raise Unsupported(why, operation="open", path=path)
        return self._fs.open(path, f"{mode.rstrip('bt')}b", check_on_open=True, **options)

    def size(self, path: str) -> Any:
        """The size. rasterio asks for the size of ``test`` first, at most the name of a bucket."""
        try:
            return self._fs.size(path)
        except Error as error:
            if "/" in path:
                raise
            raise NotFound("there is no such object", operation="info", path=path) from error


def gdal_opener(fs: Any) -> GdalOpener:
    """The ``opener`` of ``rasterio.open`` over a file system of ours: GDAL finds out at once what is missing."""
    return GdalOpener(fs)
