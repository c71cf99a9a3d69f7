"""The media types that names suggest, by one table: the files of a machine, which Python asks, differ from others."""

from __future__ import annotations

# The types, each with the ends of names that have it.
_TABLE = """
application/epub+zip epub
application/geo+json geojson
application/gzip gz
application/java-archive jar
application/json json map
application/ld+json jsonld
application/manifest+json webmanifest
application/msword doc
application/octet-stream bin
application/pdf pdf
application/rtf rtf
application/sql sql
application/toml toml
application/vnd.apache.arrow.file arrow feather
application/vnd.apache.arrow.stream arrows
application/vnd.apache.parquet parquet parq pq
application/vnd.apple.mpegurl m3u8
application/vnd.ms-excel xls
application/vnd.ms-powerpoint ppt
application/vnd.openxmlformats-officedocument.presentationml.presentation pptx
application/vnd.openxmlformats-officedocument.spreadsheetml.sheet xlsx
application/vnd.openxmlformats-officedocument.wordprocessingml.document docx
application/wasm wasm
application/x-7z-compressed 7z
application/x-bzip2 bz2
application/x-compress z
application/x-hdf5 h5 hdf5
application/x-ipynb+json ipynb
application/x-ndjson jsonl ndjson
application/x-netcdf nc
application/x-tar tar
application/x-xz xz
application/xhtml+xml xhtml
application/xml xml xsd xsl
application/yaml yaml yml
application/zip zip
application/zstd zst
audio/aac aac
audio/flac flac
audio/mp4 m4a
audio/mpeg mp3
audio/ogg oga ogg opus
audio/wav wav
font/otf otf
font/ttf ttf
font/woff woff
font/woff2 woff2
image/avif avif
image/bmp bmp
image/gif gif
image/jpeg jpeg jpg
image/png png
image/svg+xml svg
image/tiff tif tiff
image/vnd.microsoft.icon ico
image/webp webp
text/calendar ics
text/css css
text/csv csv
text/html htm html
text/javascript js mjs
text/markdown markdown md
text/plain log text txt
text/tab-separated-values tsv
text/vtt vtt
text/x-python py
video/mp4 m4v mp4
video/mpeg mpeg mpg
video/ogg ogv
video/quicktime mov
video/webm webm
video/x-matroska mkv
video/x-msvideo avi
"""
_TYPE_OF = {end: kind for kind, *ends in map(str.split, _TABLE.strip().splitlines()) for end in ends}
# The end before theirs says what is packed in these.
_PACKED = frozenset(("br", "bz2", "gz", "xz", "z", "zst"))
_TAR = {"tbz2": "bz2", "tgz": "gz", "txz": "xz"}


def content_type_of(path: str, *, is_unpacked: bool = False) -> str | None:
    """The media type that the end of a name suggests, ``None`` for another end: ``a.csv.gz`` is ``application/gzip``.

    ``is_unpacked``: that of what is in it.
    """
    name, _, end = path.rpartition("/")[2].lower().lstrip(".").rpartition(".")
    if end in _TAR:
        name, end = f"{name}.tar", _TAR[end]
    if is_unpacked and end in _PACKED:
        name, _, end = name.rpartition(".")
    return _TYPE_OF.get(end) if name else None
