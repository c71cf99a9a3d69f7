"""Which buckets list in the order of keys."""

import pytest

import aioprefetch as ap


@pytest.mark.parametrize(
    ("bucket", "is_ordered"),
    [("name", True), ("name--usw2-az1--x-s3", False), ("name--usw2-az1--xa-s3", False), ("x--x-s3a", True)],
)
def test_directory_buckets_and_their_access_points_list_in_no_order(bucket: str, is_ordered: bool) -> None:
    service = ap.services.S3(bucket=bucket, region="us-west-2")
    assert service.capability.list_ordered is service.capability.list_start_after is is_ordered
    assert ap.Operator(service).capability.list_ordered is is_ordered
