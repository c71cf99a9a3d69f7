"""A directory bucket of S3 (S3 Express), as far as its listings differ from those of other buckets.

Each page is sorted by itself, and the pages come in an order of their own. No key to start after is taken, and no
prefix that does not end with a slash.
"""

import zlib
from typing import Any

from aioprefetch import Operator
from aioprefetch.services import S3
from aioprefetch.testing.bucket import Answer, Call, failed
from tests.stores.faulty_bucket import FaultyBucket

NAME = "name--usw2-az1--x-s3"
PAGE_ENTRIES = 2


class DirectoryBucket(FaultyBucket):
    """The bucket."""

    def __init__(self) -> None:
        super().__init__(name=NAME)

    def operator(self, **options: Any) -> Operator:
        """An operator of the bucket."""
        keys: dict[str, Any] = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "secret"}
        return Operator(S3(bucket=NAME, endpoint_url=self.endpoint_url, region="us-west-2", **keys), **options)

    def list_objects(self, call: Call) -> Answer:
        prefix = call.query.get("prefix", "")
        if "start-after" in call.query or not (prefix == "" or prefix.endswith("/")):
            return failed(400, "InvalidRequest")
        rows = self.rows(prefix, call.query.get("delimiter", ""))
        names = sorted(rows, key=lambda name: zlib.crc32(name.encode()))
        start = int(call.query.get("continuation-token", 0))
        after = start + PAGE_ENTRIES
        return self.page(rows, sorted(names[start:after]), str(after) if after < len(names) else None)
