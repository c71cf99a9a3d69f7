"""One directory under several spellings, and what lies in it."""

import pytest

from aioprefetch.source.state.store import canonical_root, path_below, store_path_below
from aioprefetch.values import ServiceInfo


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/landing", "s3a://b/landing"),
        ("s3://b/landing", "S3A://B/landing//"),
        ("s3://b/", "s3a://b"),
        ("file:///tmp/x", "file:///tmp/x/"),
        ("file:///", "file:////"),
        ("https://Host/a", "https://host/a/"),
    ],
)
def test_spellings_of_one_directory(one: str, other: str) -> None:
    assert canonical_root(one) == canonical_root(other)
    assert path_below(one, other) == path_below(other, one) == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [("s3://b/x", "s3://b/X"), ("s3://b/x", "s3://b//x"), ("s3://b/x", "file:///b/x"), ("memory://a", "memory://A")],
)
def test_other_directories_differ(one: str, other: str) -> None:
    assert canonical_root(one) != canonical_root(other)
    assert path_below(one, other) is None


def test_below() -> None:
    assert path_below("s3://b/landing", "s3a://b/landing/state/") == "state/"
    assert path_below("s3://b", "s3a://b/landing/state") == "landing/state/"
    assert path_below("s3://b/landing", "s3://b/landing2") is None
    assert path_below("file:///", "file:///a") == "a/"


def test_below_in_terms_of_operators() -> None:
    source = ServiceInfo(scheme="s3", name="b", root="in/", endpoint="e")
    assert store_path_below(source, ServiceInfo(scheme="s3", name="b", root="", endpoint="e"), "in/state/") == "state/"
    assert store_path_below(source, ServiceInfo(scheme="s3", name="b", root="in", endpoint="e"), "") == ""
    assert store_path_below(source, ServiceInfo(scheme="s3", name="b", root="", endpoint="f"), "in/state/") is None
    assert store_path_below(source, ServiceInfo(scheme="s3", name="b", root="inner", endpoint="e"), "") is None
