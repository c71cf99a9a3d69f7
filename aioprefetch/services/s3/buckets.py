"""The buckets of an account: listed, made and deleted. Each is one request, without the layers of an operator."""

from __future__ import annotations

from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.accessor import S3Live
from aioprefetch.services.s3.errors import ListBucketsRequest
from aioprefetch.services.s3.options import S3Options
from aioprefetch.values import CreateDirRequest, DeleteRequest

# The region whose buckets are made without a word about it; it is an error to name it.
_UNNAMED_REGION = "us-east-1"


class Buckets:
    """The buckets at the endpoint of a recipe, for its principal, by the connections of its operators."""

    def __init__(self, options: S3Options, runtime: Runtime) -> None:
        principal = options.info.principal
        live: S3Live = runtime.shared(("s3", options, principal), lambda: S3Live(options, runtime, principal))
        self._client = live.client

    async def names(self) -> list[str]:
        """All buckets of the account, in order. Raises ``PermissionDenied`` where they may not be listed."""
        found: list[str] = []
        token = None
        while True:
            response = await self._client.call(ListBucketsRequest(path=""), "list_buckets", ContinuationToken=token)
            found += [bucket["Name"] for bucket in response.get("Buckets") or ()]
            token = response.get("ContinuationToken")
            if not token:
                return sorted(found)

    async def create(self) -> None:
        """Make the bucket of the recipe, in its region. ``AlreadyExists`` if it is there, or is another account's."""
        request = CreateDirRequest(path="")
        region = (await self._client.connected(request)).meta.region_name
        where = None if region == _UNNAMED_REGION else {"LocationConstraint": region}
        await self._client.call(request, "create_bucket", CreateBucketConfiguration=where)

    async def delete(self) -> None:
        """Delete the bucket of the recipe. ``IsADirectory`` if there is something in it."""
        await self._client.call(DeleteRequest(path="", paths=("",)), "delete_bucket")
