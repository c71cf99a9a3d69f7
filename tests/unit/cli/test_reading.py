"""``cat``: whole objects, parts, patterns; what it asks for."""

from pathlib import Path

import pytest

from aioprefetch.operator.operator import Operator
from tests.unit.cli.commands import Bucket, run

CONTENT = bytes(range(256)) * 40  # 10 KiB


def test_cat_writes_objects_one_after_the_other(folder: Path, bucket: Bucket) -> None:
    assert run("cat", folder / "big").stdout_bytes == bytes(range(256)) * 10_000
    assert run("cat", f"{folder}/*", folder / "a b.txt").stdout_bytes == (
        b"hello\n" + bytes(range(256)) * 10_000 + b"hello\n"
    )
    bucket.put(a=b"one", d__b=b"two")
    assert run("cat", bucket.url("a"), bucket.url("**/b")).stdout_bytes == b"onetwo"
    assert bucket.server.count("HEAD") == 1  # Of the pattern: a name that is there is none.


def test_ranges_are_one_request_each(bucket: Bucket) -> None:
    bucket.put(k=CONTENT)
    for text, expected in {
        "0:10": CONTENT[:10],
        ":10": CONTENT[:10],
        "5:": CONTENT[5:],
        "1KiB:2KiB": CONTENT[1024:2048],
        "-8:": CONTENT[-8:],
        "7:7": b"",
        "10000:99999": CONTENT[10000:],
    }.items():
        bucket.server.reset()
        assert run("cat", "--range", text, bucket.url("k")).stdout_bytes == expected, text
        assert bucket.server.count() == 1, text
    for text in ("0:0", ":0", "7:7"):
        assert "NotFound" in run("cat", "--range", text, bucket.url("missing"), code=1).stderr


def test_a_long_range_ends_where_it_should(tmp_path: Path) -> None:
    """It is read ahead, and not beyond its end."""
    content = bytes(range(251)) * 100_000
    (tmp_path / "k").write_bytes(content)
    assert run("cat", "--range=3:20000001", tmp_path / "k").stdout_bytes == content[3:20000001]
    assert run("cat", "--range=-20000001:", tmp_path / "k").stdout_bytes == content[-20000001:]
    assert run("cat", "--range=-1GiB:", tmp_path / "k").stdout_bytes == content


def test_a_long_end_is_not_taken_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written in pieces."""
    (tmp_path / "k").write_bytes(bytes(range(251)) * 100_000)
    monkeypatch.setattr(Operator, "view", None)
    assert len(run("cat", "--range=-20000001:", tmp_path / "k").stdout_bytes) == 20_000_001


@pytest.mark.parametrize("text", ["5", "9:3", "a:b", "-5:9", "1:-2", "1.5:9"])
def test_ranges_that_cannot_be_understood(text: str, folder: Path) -> None:
    result = run("cat", f"--range={text}", folder / "big", code=2)
    assert "--range" in result.stderr


def test_a_range_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    """Of any length, and as in a request; a range from the beginning of an empty object is empty."""
    (tmp_path / "k").write_bytes(CONTENT)
    for text in ("10240:", "1MiB:", "1MiB:2MiB", "1MiB:20MiB"):
        result = run("cat", "--range", text, tmp_path / "k", code=1)
        assert "starts at or beyond the end of the object's 10240 bytes (RangeNotSatisfied)" in result.stderr, text
        assert result.stdout_bytes == b""
    (tmp_path / "empty").write_bytes(b"")
    assert run("cat", "--range", "0:", tmp_path / "empty").stdout_bytes == b""


def test_a_directory_has_no_bytes(folder: Path) -> None:
    assert f"IsADirectory); hint: cat '{folder}/*' writes" in run("cat", folder, code=1).stderr
