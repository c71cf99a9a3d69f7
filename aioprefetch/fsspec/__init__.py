"""fsspec's file system over aioprefetch, for pandas, dask, xarray, zarr, DuckDB and all else that takes its URLs.

``aioprefetch+s3://bucket/key`` works wherever the package is installed; ``register("s3")`` takes ``s3://`` over.
``AioPrefetchFileSystem(op)`` is the file system of one operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.fsspec.filesystem import AioPrefetchFileSystem
    from aioprefetch.fsspec.gdal import gdal_opener
    from aioprefetch.fsspec.opening import AsyncReadFile, AsyncWriteFile, ReadFile, WriteFile
    from aioprefetch.fsspec.schemes import (
        AzureFileSystem,
        GSFileSystem,
        HttpFileSystem,
        LocalFileSystem,
        MemoryFileSystem,
        S3FileSystem,
        register,
    )

__all__ = [
    "AioPrefetchFileSystem",
    "AsyncReadFile",
    "AsyncWriteFile",
    "AzureFileSystem",
    "GSFileSystem",
    "HttpFileSystem",
    "LocalFileSystem",
    "MemoryFileSystem",
    "ReadFile",
    "S3FileSystem",
    "WriteFile",
    "gdal_opener",
    "register",
]

load_at_first_use(
    __name__,
    {
        "filesystem": ("AioPrefetchFileSystem",),
        "gdal": ("gdal_opener",),
        "opening": ("AsyncReadFile", "AsyncWriteFile", "ReadFile", "WriteFile"),
        "schemes": (
            "AzureFileSystem",
            "GSFileSystem",
            "HttpFileSystem",
            "LocalFileSystem",
            "MemoryFileSystem",
            "S3FileSystem",
            "register",
        ),
    },
    extra="fsspec",
)
