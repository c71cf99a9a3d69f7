"""The opener that GDAL probes with, by itself and through rasterio where it is installed."""

from typing import Any

import numpy as np
import pytest

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem, S3FileSystem, gdal_opener
from tests.unit.fsspec.s3_words import Bucket

CELLS = np.arange(512 * 512, dtype="uint16").reshape(1, 512, 512)
TIFF = {"driver": "GTiff", "width": 512, "height": 512, "count": 1, "dtype": "uint16"}


class TestOpener:
    def test_reads_and_fails_at_once(self, fs: AioPrefetchFileSystem, data: bytes) -> None:
        opener = gdal_opener(fs)
        for mode in ("rb", "r", "rt"):
            with opener.open("a", mode) as file:
                assert file.read() == data
            with pytest.raises(FileNotFoundError):
                opener.open("missing", mode)
        assert (opener.size("a"), opener.isfile("a"), opener.isdir("d")) == (len(data), True, True)

    @pytest.mark.parametrize("mode", ["w", "wb", "w+b", "r+b", "ab"])
    def test_writes_nothing(self, fs: AioPrefetchFileSystem, mode: str) -> None:
        with pytest.raises(ap.Unsupported):
            gdal_opener(fs).open("new", mode)
        assert not fs.exists("new")

    def test_has_no_size_of_a_name_that_is_no_path(self) -> None:
        """rasterio asks for that of ``test``, which may be the bucket of another account."""
        fs = S3FileSystem(endpoint_url="http://127.0.0.1:1", anon=True, attempts_max=1, region="us-east-1")
        with pytest.raises(FileNotFoundError):
            gdal_opener(fs).size("test")
        with pytest.raises(ap.Unavailable):
            gdal_opener(fs).size("test/k")
        fs.close()


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
class TestRasterio:
    @pytest.fixture
    def rasterio(self) -> Any:
        return pytest.importorskip("rasterio", reason="needs rasterio")

    @pytest.fixture
    def grid(self, rasterio: Any, bucket: Bucket) -> str:
        with rasterio.MemoryFile() as file:
            with file.open(**TIFF) as dataset:
                dataset.write(CELLS)
            bucket.fs.pipe_file(f"{bucket.name}/g/grid.tif", file.read())
        bucket.requests()
        return f"{bucket.name}/g/grid.tif"

    def test_reads_by_few_requests(self, rasterio: Any, bucket: Bucket, grid: str) -> None:
        with rasterio.open(grid, opener=gdal_opener(bucket.fs)) as dataset:
            assert (dataset.read() == CELLS).all()
        assert len(bucket.requests()) <= 4  # The name ``test``, the file, and the names beside it.

    def test_takes_a_file_system_or_an_open_that_asks_at_once(self, rasterio: Any, bucket: Bucket, grid: str) -> None:
        fs = S3FileSystem(**bucket.words, check_on_open=True)
        for opener in (fs, fs.open):
            with rasterio.open(grid, opener=opener) as dataset:
                assert (dataset.read() == CELLS).all()
        for file in (bucket.fs.open(grid), fs.open(grid)):
            with file, rasterio.open(file) as dataset:
                assert (dataset.read() == CELLS).all()

    def test_says_what_is_missing_and_what_is_not_written(self, rasterio: Any, bucket: Bucket, grid: str) -> None:
        for opener in (gdal_opener(bucket.fs), S3FileSystem(**bucket.words, check_on_open=True)):
            with pytest.raises(rasterio.errors.RasterioIOError):
                rasterio.open(f"{bucket.name}/g/missing.tif", opener=opener)
            with pytest.raises(rasterio.errors.RasterioIOError):
                rasterio.open(f"{bucket.name}/g/new.tif", "w", opener=opener, **TIFF)
        assert bucket.fs.ls(f"{bucket.name}/g") == [grid]
