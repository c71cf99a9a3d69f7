"""The small commands, on files: what they print, and how they fail."""

import subprocess
import sys
from pathlib import Path

import pytest

from aioprefetch.cli import main
from tests.benches.source_tree import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files and a folder in it."""
    (tmp_path / "a b.txt").write_bytes(b"hello\n")
    (tmp_path / "big").write_bytes(bytes(range(256)) * 10_000)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "c").write_bytes(b"")
    return tmp_path


def test_stat(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stat", f"file://{folder}/a b.txt"]) == 0
    lines = dict(line.split(":", 1) for line in capsys.readouterr().out.splitlines())
    assert (lines["path"].strip(), lines["size"].strip(), lines["kind"].strip()) == ("a b.txt", "6", "file")


def test_cat(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["cat", f"file://{folder}/big"]) == 0
    assert capfdbinary.readouterr().out == bytes(range(256)) * 10_000


def test_ls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", f"file://{folder}/"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[43:] for line in lines] == ["a b.txt", "big", "inner/"]
    assert lines[0].split()[0] == "6"
    assert main(["ls", "-r", f"file://{folder}/"]) == 0
    assert "inner/c" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pattern", "listed"),
    [
        ("*", ["a b.txt", "big", "inner/"]),
        ("*.txt", ["a b.txt"]),
        ("b?g", ["big"]),
        ("[ai]*", ["a b.txt", "inner/"]),
        ("inner/*", ["c"]),
        ("inn*/", ["inner/"]),
        ("inn*/*", ["inner/c"]),
        ("inn*/c", ["inner/c"]),
        ("**", ["a b.txt", "big", "inner/c"]),
        ("**/c", ["inner/c"]),
        ("inn* -r", ["inner/c"]),
        ("b* -r", ["big"]),
    ],
)
def test_ls_takes_a_pattern(pattern: str, listed: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    glob, *options = pattern.split()
    assert main(["ls", f"file://{folder}/{glob}", *options]) == 0
    assert [line[43:] for line in capsys.readouterr().out.splitlines()] == listed


@pytest.mark.parametrize("path", ["none/", "*.csv", "none/*", "n[o]ne/x"])
def test_ls_of_nothing_says_so_and_fails(path: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{folder}/{path}"
    assert main(["ls", url]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"aioprefetch: nothing here: {url}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cat", "file:///nowhere/at/all"], "NotFound"),
        (["stat", "file:///nowhere/at/all"], "NotFound"),
        (["cat", "no-url"], "not a URL"),
        (["cat", "gopher://host/x"], "unknown scheme 'gopher'"),
        (["ls", "s3://"], "bucket"),
        (["cat", "file:///tmp/x", "--region", "eu-west-1"], "unknown option 'region'"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.startswith("aioprefetch: ")
    assert printed.err.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("aioprefetch ")


def test_a_reader_that_goes_away_is_no_traceback(folder: Path) -> None:
    """As in `aioprefetch cat URL | head -c 1`."""
    with subprocess.Popen(
        [sys.executable, "-m", "aioprefetch", "cat", f"file://{folder}/big"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"\0"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
