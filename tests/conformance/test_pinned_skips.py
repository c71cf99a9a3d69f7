"""The tests that each store skips, by name: a capability that gets lost is a failure here, not a silent skip."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore, MemoryStore, S3Store

from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.obspec import store as provided
from aioprefetch.operator.operator import Operator
from aioprefetch.services.fs import Fs
from aioprefetch.services.http import Http
from aioprefetch.services.memory import Memory
from aioprefetch.services.obspec import ObspecStore
from aioprefetch.services.s3 import S3
from aioprefetch.testing.accessor_suite import AccessorSuite
from aioprefetch.testing.conformance.suite import skipped_tests
from aioprefetch.testing.reader_suite import ReaderSuite
from tests.conformance.test_fs import OnFs
from tests.conformance.test_http import OnHttp
from tests.conformance.test_memory import OnMemory
from tests.conformance.test_obspec import OnObstoreLocal, OnObstoreMemory, OnObstoreS3, OnOurProvider
from tests.conformance.test_s3_moto import OnMoto
from tests.conformance.test_s3_rclone import OnRclone
from tests.conformance.test_service_of_your_own import OnDict, OnGuide, guide_module
from tests.repository.source_tree import PACKAGE, python_files
from tests.stores.dict_store import DictStore
from tests.stores.stacks import STACKS, EachStack, lacking

# Of every store that compares times.
WITH_TIMES = {"test_condition_times_are_refused_where_they_would_be_ignored"}
WITHOUT_TIMES = {"test_condition_times"}
NO_LISTED_VERSIONS = {
    *("test_version_listing", "test_version_listing_by_pages_and_directories", "test_version_deletion"),
    *("test_copy_of_a_version", "test_delete_batch_with_versions"),
}
NO_VERSIONS = {"test_condition_version", *NO_LISTED_VERSIONS}
LISTS_VERSIONS = {
    "test_list_of_versions_is_refused_where_there_are_none",
    "test_delete_of_a_version_is_refused_where_there_are_none",
    "test_delete_batch_with_versions_is_refused_where_there_are_none",
}
NO_CLASSES = {"test_write_storage_class_and_key", "test_write_checksum"}
KEEPS_CLASSES = {"test_write_storage_class_key_and_checksum_are_refused_where_they_would_be_lost"}
KEEPS_METADATA = {"test_write_user_metadata_is_refused_where_it_would_be_lost"}
NO_DOUBLE_SLASH = {"test_read_keys_with_several_slashes", "test_stat_keys_are_kept_as_given"}
NO_EMPTY_DIRECTORIES = {
    *("test_create_dir_existing_directory_is_no_error", "test_create_dir_name_without_slash_is_refused"),
    *("test_delete_of_an_empty_directory", "test_list_empty_directory", "test_stat_of_a_created_directory"),
}
NO_PARTS = {
    *("test_writer_uploads_left_behind_are_removed", "test_writer_of_two_uploads_of_one_key"),
    *("test_writer_in_parts_keeps_what_describes", "test_copy_in_parts"),
}
NO_PRESIGN = {"test_presigned_urls_serve_a_plain_client", "test_presigned_headers_of_the_response"}
KEEPS_ANY_BUT_ONE = {"test_write_if_none_match_is_refused_where_it_would_be_ignored"}
REPLACES_ANY = {"test_write_if_none_match"}
NO_CONDITIONS_OF_WRITES = {
    *(
        "test_write_if_none_match_of_any_is_if_not_exists",
        "test_write_by_five_that_count",
        "test_copy_move_if_not_exists",
    ),
    *("test_write_if_match", "test_write_if_not_exists", "test_writer_if_match", "test_writer_if_not_exists"),
}
KEEPS_OLD_BYTES = {
    *("test_condition_if_match_after_a_change", "test_copy_if_match"),
    *("test_overwritten_object", "test_deleted_object", "test_overwritten_object_after_a_read_beyond_its_end"),
}
NO_RENAME = {"test_rename"}
NO_CONDITIONS_BUT_OF_WRITES = {"test_delete_if_match", *NO_RENAME}
NO_CONDITIONS_OF_COPIES = {"test_copy_if_match"}
NO_STAT = re.compile(r"test_stat_(?!of_the_root)|test_condition_of_a_stat|test_condition_if_none_match|test_rename")
READ_ONLY = re.compile(r"test_(list|write|writer|copy|delete|create_dir)(_|$)")
NO_DIRECTORIES = {
    "test_stat_of_a_created_directory",
    "test_stat_of_a_directory_without_slash",
    "test_stat_of_a_file_with_a_slash_is_not_found",
    "test_stat_of_a_missing_directory",
    "test_stat_of_a_parent_is_a_directory",
}

# Of all stores in memory and on disks, of those over S3 whose answers lack something, and of obstore.
NO_CLOUD = NO_VERSIONS | NO_CLASSES | NO_PARTS | NO_PRESIGN
OVER_S3 = REPLACES_ANY | NO_CONDITIONS_BUT_OF_WRITES | {"test_read_version_is_refused_where_there_are_none"}
BY_OUR_S3 = OVER_S3 | KEEPS_METADATA | KEEPS_CLASSES | LISTS_VERSIONS | {"test_copy_if_not_exists"}
BY_OBSTORE = REPLACES_ANY | NO_CLASSES | NO_PARTS | NO_DOUBLE_SLASH | NO_EMPTY_DIRECTORIES | NO_CONDITIONS_BUT_OF_WRITES
IN_OBSTORES_MEMORY = NO_CLOUD | BY_OBSTORE | KEEPS_METADATA | NO_CONDITIONS_OF_COPIES
NO_DESCRIPTIONS = {"test_write_content_headers", "test_write_user_metadata"}
READS_ALONE = {"test_path_is_relative_to_the_root", "test_deleted_object"}

SKIPPED: dict[type[EachStack], set[str]] = {
    OnMemory: NO_CLOUD | KEEPS_METADATA | NO_RENAME | KEEPS_ANY_BUT_ONE,
    OnFs: NO_CLOUD | NO_DOUBLE_SLASH | KEEPS_ANY_BUT_ONE | NO_DESCRIPTIONS,
    OnHttp: NO_VERSIONS
    | NO_PRESIGN
    | NO_RENAME
    | NO_DIRECTORIES
    | {name for name in dir(AccessorSuite) if READ_ONLY.match(name)}
    | READS_ALONE,
    OnMoto: BY_OUR_S3 | KEEPS_OLD_BYTES | {"test_write_by_five_that_count"},
    OnRclone: BY_OUR_S3
    | NO_VERSIONS
    | NO_CONDITIONS_OF_WRITES
    | NO_CONDITIONS_OF_COPIES
    | NO_DOUBLE_SLASH
    | {"test_copy_in_parts", "test_create_dir_existing_directory_is_no_error", "test_stat_of_a_created_directory"},
    OnObstoreMemory: IN_OBSTORES_MEMORY,
    OnOurProvider: IN_OBSTORES_MEMORY,
    OnObstoreLocal: NO_CLOUD
    | BY_OBSTORE
    | NO_CONDITIONS_OF_COPIES
    | NO_DESCRIPTIONS
    | {"test_write_by_five_that_count", "test_write_if_match", "test_writer_if_match"},
    OnObstoreS3: OVER_S3
    | BY_OBSTORE
    | KEEPS_OLD_BYTES
    | NO_LISTED_VERSIONS
    | KEEPS_METADATA
    | {"test_presigned_headers_of_the_response", "test_write_by_five_that_count"},
    OnDict: NO_CLOUD
    | REPLACES_ANY
    | NO_CONDITIONS_OF_WRITES
    | NO_EMPTY_DIRECTORIES
    | NO_CONDITIONS_OF_COPIES
    | NO_CONDITIONS_BUT_OF_WRITES
    | NO_DESCRIPTIONS
    | {"test_condition_if_none_match", "test_copy_if_not_exists"},
    OnGuide: NO_VERSIONS
    | NO_PRESIGN
    | {name for name in dir(AccessorSuite) if READ_ONLY.match(name) or NO_STAT.match(name)}
    | READS_ALONE,
}
NOWHERE = "http://127.0.0.1:1"
# A service that is asked for its capability alone; nothing listens there. Others are those of our S3.
SERVICES: dict[type[EachStack], Callable[[Path], Any]] = {
    OnMemory: lambda _: Memory(),
    OnFs: lambda folder: Fs(str(folder)),
    OnDict: lambda _: DictStore(),
    OnGuide: lambda _: guide_module().Toy(name="poems"),
    OnHttp: lambda _: Http(f"{NOWHERE}/"),
    OnObstoreMemory: lambda _: ObspecStore(MemoryStore()),
    OnOurProvider: lambda _: ObspecStore(provided(Operator(Memory()))),
    OnObstoreLocal: lambda folder: ObspecStore(LocalStore(folder)),
    OnObstoreS3: lambda _: ObspecStore(S3Store("bucket", endpoint=NOWHERE, access_key_id="a", secret_access_key="b")),
}


def our_s3(_: Path) -> Any:
    return S3(bucket="bucket", endpoint_url=NOWHERE, region="us-east-1", access_key_id="a", secret_access_key="b")


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("store", SKIPPED)
def test_skipped_tests_are_pinned(store: type[EachStack], stack: str, tmp_path: Path) -> None:
    """Exactly these skip, on each stack."""
    service = SERVICES.get(store, our_s3)(tmp_path)
    operator = Operator.bare(service) if stack == "bare" else Operator(service)
    if stack == "cached":
        operator = operator.layer(LruCacheLayer(cache=Operator(Memory()), capacity_bytes=1 << 20))
    expected = SKIPPED[store] | (WITH_TIMES if operator.capability.read_if_modified_since else WITHOUT_TIMES)
    if stack == "cached":
        expected = expected | KEEPS_OLD_BYTES | {"test_small_object_is_one_get"}
    found: set[str] = set()
    for suite in (AccessorSuite, ReaderSuite):
        found |= set(skipped_tests(suite, operator.capability, lacking(store, stack)))
    assert found == expected


def test_tests_skip_in_one_place_alone() -> None:
    """By `reason_to_skip`, so that what is pinned above is all."""
    folder = PACKAGE / "testing" / "conformance"
    skips = [path.name for path in python_files(folder) for _ in re.findall(r"pytest\.skip", path.read_text("utf-8"))]
    assert skips == ["by_pytest.py"]
