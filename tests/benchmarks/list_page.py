"""What the simulator's bucket answers when it is listed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from xml.sax.saxutils import escape

# Keys of a page, as on S3.
LIST_KEYS = 1000


def list_page(entries: Iterable[tuple[str, os.stat_result]], following: str | None) -> str:
    """A ListObjectsV2 answer of some files by key, and the token of the next page."""
    contents = "".join(_entry(key, status) for key, status in entries)
    more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{'true' if following else 'false'}</IsTruncated>{more}{contents}</ListBucketResult>"
    )


def _entry(key: str, status: os.stat_result) -> str:
    modified = datetime.fromtimestamp(int(status.st_mtime), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    etag = f"&quot;{int(status.st_mtime):x}-{status.st_size:x}&quot;"  # as nginx makes it
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified><ETag>{etag}</ETag>"
        f"<Size>{status.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )
