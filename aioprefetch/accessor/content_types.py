"""The media types that names suggest, by one table: the files of a machine, which Python asks, differ from others."""

from __future__ import annotations

# The types, each as its name and the ends of names that have it; one end is the name itself.
_TABLE = {
    "application": "json:json,map pdf rtf sql toml wasm zip epub+zip:epub geo+json:geojson gzip:gz java-archive:jar"
    " ld+json:jsonld manifest+json:webmanifest msword:doc octet-stream:bin xhtml+xml:xhtml xml:xml,xsd,xsl"
    " yaml:yaml,yml zstd:zst x-7z-compressed:7z x-bzip2:bz2 x-compress:z x-hdf5:h5,hdf5 x-ipynb+json:ipynb"
    " x-ndjson:jsonl,ndjson x-netcdf:nc x-tar:tar x-xz:xz vnd.apache.arrow.file:arrow,feather"
    " vnd.apache.arrow.stream:arrows vnd.apache.parquet:parquet,parq,pq vnd.apple.mpegurl:m3u8 vnd.ms-excel:xls"
    " vnd.ms-powerpoint:ppt vnd.openxmlformats-officedocument.presentationml.presentation:pptx"
    " vnd.openxmlformats-officedocument.spreadsheetml.sheet:xlsx"
    " vnd.openxmlformats-officedocument.wordprocessingml.document:docx",
    "audio": "aac flac mp4:m4a mpeg:mp3 ogg:oga,ogg,opus wav",
    "font": "otf ttf woff woff2",
    "image": "avif bmp gif jpeg:jpeg,jpg png svg+xml:svg tiff:tif,tiff vnd.microsoft.icon:ico webp",
    "text": "calendar:ics css csv html:htm,html javascript:js,mjs markdown:markdown,md plain:log,text,txt"
    " tab-separated-values:tsv vtt x-python:py",
    "video": "mp4:m4v,mp4 mpeg:mpeg,mpg ogg:ogv quicktime:mov webm x-matroska:mkv x-msvideo:avi",
}
_TYPE_OF = {
    end: f"{kind}/{name}"
    for kind, words in _TABLE.items()
    for name, _, ends in (word.partition(":") for word in words.split())
    for end in (ends or name).split(",")
}
# The end before theirs says what is packed in these.
_PACKED = frozenset(("br", "bz2", "gz", "xz", "z", "zst"))
_TAR = {"tbz2": "bz2", "tgz": "gz", "txz": "xz"}


def content_type_of(path: str, *, is_unpacked: bool = False) -> str | None:
    """The media type that the end of a name suggests, ``None`` for another end: ``a.csv.gz`` is ``application/gzip``.

    ``is_unpacked``: the type of its content.
    """
    name, _, end = path.rpartition("/")[2].lower().lstrip(".").rpartition(".")
    if end in _TAR:
        name, end = f"{name}.tar", _TAR[end]
    if is_unpacked and end in _PACKED:
        name, _, end = name.rpartition(".")
    return _TYPE_OF.get(end) if name else None
