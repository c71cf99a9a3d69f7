"""Which names an object may have."""

import pytest

from aioprefetch.errors import InvalidPath
from aioprefetch.services.keys import checked_key
from tests.profile import each_of


@each_of(
    "path",
    ["k", "a b+c%d#e?f", "/leading", "a//b", "dir/", "ü/日本", ".hidden", "a..b", "...", "tab\there", "k" * 1024],
)
def test_keys_are_kept_as_given(path: str) -> None:
    """Nothing is cut, decoded or folded."""
    assert checked_key(path, operation="read") == path


@each_of(
    ("path", "said"),
    [
        ("..", "'..'"),
        ("a/../b", "'..'"),
        ("./a", "'.'"),
        ("a/.", "'.'"),
        ("nul\0", "NUL"),
        ("k" * 1025, "1025 bytes"),
        ("ü" * 513, "1026 bytes"),
        ("\ud800", "surrogate"),
    ],
)
def test_refuses_what_would_arrive_as_another_key(path: str, said: str) -> None:
    """The error names operation and path and says why."""
    with pytest.raises(InvalidPath, match=said) as caught:
        checked_key(path, operation="stat")
    assert caught.value.operation == "stat"


def test_room_for_a_prefix_is_taken_off() -> None:
    """The limit counts bytes, not characters."""
    assert checked_key("ü" * 5, operation="read", bytes_max=10)
    with pytest.raises(InvalidPath, match="11 bytes of UTF-8, more than the 10"):
        checked_key("ü" * 5 + "x", operation="read", bytes_max=10)
