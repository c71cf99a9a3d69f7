"""``ls``, ``stat`` and ``du`` of local files and of a bucket."""

import os
from pathlib import Path

import pytest

from aioprefetch.errors import PermissionDenied
from tests.unit.cli.commands import Bucket, lines, objects, run

SIZE = 2_560_000


@pytest.mark.parametrize("form", ["{}", "file://{}", "{}/", "file://{}/"])
def test_ls_of_a_directory(form: str, folder: Path) -> None:
    place = form.format(folder)
    assert lines("ls", place) == ["a b.txt", "big", "inner/"]
    assert lines("ls", "-R", place) == ["a b.txt", "big", "inner/c"]
    assert [line.split(maxsplit=2)[::2] for line in lines("ls", "-lR", place)] == [
        ["6", "a b.txt"],
        [str(SIZE), "big"],
        ["0", "inner/c"],
    ]
    assert lines("ls", "-lh", place)[1].split()[:2] == ["2.44", "MiB"]


def test_ls_of_patterns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What matches is printed as a place; directories match too, and with -R what they hold."""
    monkeypatch.chdir(folder)
    for pattern, listed in {
        "*": ["a b.txt", "big", "inner/"],
        "*.txt": ["a b.txt"],
        "b?g": ["big"],
        "[ai]*": ["a b.txt", "inner/"],
        "inner/*": ["inner/c"],
        "inn*/": ["inner/"],
        "inn*/*": ["inner/c"],
        "**": ["a b.txt", "big", "inner/c"],
        "**/c": ["inner/c"],
        "big": ["big"],
        "inner": ["c"],
    }.items():
        assert lines("ls", pattern) == listed, pattern
        url = f"file://{folder}/{pattern}"
        shown = [f"file://{folder}/{name}" if "*" in pattern or "?" in pattern else name for name in listed]
        if pattern not in ("big", "[ai]*"):
            assert lines("ls", url) == shown, url
    assert lines("ls", "-R", "inn*") == ["inner/c"]
    assert lines("ls", "-R", "b*") == ["big"]


def test_ls_of_a_bucket_asks_once(bucket: Bucket) -> None:
    bucket.put(a=b"1", d__b=b"22", d__e__c=b"333")
    assert lines("ls", bucket.url()) == ["a", "d/"]
    assert lines("ls", bucket.url().rstrip("/")) == ["a", "d/"]
    assert bucket.server.count() == 2
    assert lines("ls", bucket.url("d")) == ["b", "e/"]
    assert lines("ls", bucket.url("**/c"), bucket.url("a")) == [bucket.url("d/e/c"), bucket.url("a")]
    (entry,) = objects("ls", "--json", "-R", bucket.url("d/e/"))
    assert (entry["url"], entry["size"], entry["kind"]) == (bucket.url("d/e/c"), 3, "file")
    assert entry["last_modified"].endswith("+00:00")


def test_nothing_is_said_and_is_exit_code_1(folder: Path, bucket: Bucket) -> None:
    for place in (f"{folder}/none/", f"{folder}/*.csv", f"{folder}/none", bucket.url("none"), bucket.url("x*")):
        for command in ("ls", "du", "stat", "cat", "rm"):
            result = run(command, place, *(["-r"] if command == "rm" else []), code=1)
            assert result.stdout == ""
            assert result.stderr.startswith("aioprefetch: ")
            assert result.stderr.count("\n") == 1


def test_a_place_that_fails_leaves_the_others(folder: Path, bucket: Bucket) -> None:
    """Each failure is one line, and the exit code is 1; with ``--debug`` it is a traceback."""
    bucket.put(k=b"hello\n")
    wrong = (f"{folder}/none", f"{folder}/none/", f"{folder}/*.csv", bucket.url("none"))
    for command in ("ls", "cat", "stat", "du"):
        alone = run(command, bucket.url("k")).stdout
        result = run(command, *wrong, bucket.url("k"), *wrong, code=1)
        assert result.stdout == alone != ""
        assert result.stderr.count("\n") == 2 * len(wrong)
    result = run("--debug", "cat", *wrong, bucket.url("k"), code=1)
    assert result.stdout == "hello\n"
    assert "Traceback" in result.stderr
    assert "unknown scheme" in run("cat", folder / "big", "gopher://x", code=2).stderr


def test_stat(folder: Path, bucket: Bucket) -> None:
    fields = dict(line.split(":", 1) for line in lines("stat", folder / "a b.txt"))
    assert [fields[name].strip() for name in ("path", "size", "kind")] == ["a b.txt", "6", "file"]
    assert [entry["path"] for entry in objects("stat", "--json", f"{folder}/*")] == ["a b.txt", "big"]
    assert objects("stat", "--json", folder)[0]["kind"] == "directory"
    bucket.put(k=b"12345")
    (entry,) = objects("stat", "--json", bucket.url("k"))
    assert (entry["size"], entry["etag"], entry["url"]) == (5, "827ccb0eea8a706c4c34a16891f84e7b", bucket.url("k"))


def test_du(folder: Path, bucket: Bucket) -> None:
    assert lines("du", folder)[0].split() == [str(SIZE + 6), "3", str(folder)]
    assert lines("du", "-h", folder)[0].split()[:2] == ["2.44", "MiB"]
    bucket.put(a=b"1", d__b=b"22", d__e__c=b"333", d__e__f=b"")
    sums = [(entry["directory"], entry["size"], entry["objects"]) for entry in objects("du", "--json", bucket.url())]
    assert sums == [("", 6, 4)]
    sums = [
        (entry["directory"], entry["size"], entry["objects"])
        for entry in objects("du", "--json", "-d", 2, bucket.url(), bucket.url("d"), bucket.url("d/*"))
    ]
    assert sums == [("d", 5, 3), ("d/e", 3, 2), ("", 6, 4), ("e", 3, 2), ("", 5, 3), ("", 2, 1)]


def test_names_that_are_not_texts(tmp_path: Path) -> None:
    """One line each, in JSON too."""
    (tmp_path / "line\nbreak\x1b[31m").touch()
    (tmp_path / os.fsdecode(b"\xff")).touch()
    assert sorted(lines("ls", tmp_path)) == ["\\udcff", "line\\nbreak\\x1b[31m"]
    assert sorted(entry["path"] for entry in objects("ls", "--json", tmp_path)) == [
        "line\nbreak\x1b[31m",
        os.fsdecode(b"\xff"),
    ]


def test_a_scheme_alone_has_the_buckets(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"{bucket.name}/" in lines("ls", "s3://")
    assert bucket.url() in [entry["url"] for entry in objects("ls", "--json", "s3://")]
    bucket.put(a=b"1")
    shown = lines("ls", "s3://", bucket.url())
    assert bucket.url() in shown
    assert shown[-1] == bucket.url("a")

    def refuse(*arguments: object) -> None:
        raise PermissionDenied("the store refuses the identity 'x'")

    monkeypatch.setattr("aioprefetch.services.s3.accessor.Buckets.names", refuse)
    result = run("ls", "s3://", bucket.url(), code=1)
    assert "the store refuses the identity 'x' (PermissionDenied); hint: name one: s3://bucket/" in result.stderr
    assert result.stdout == f"{bucket.url('a')}\n"


def test_where_buckets_cannot_be_listed_no_store_is_made_up() -> None:
    assert run("ls", "az://", code=1).stderr == (
        "aioprefetch: 'az://': the buckets cannot be listed here (Unsupported); hint: name one: az://bucket/\n"
    )


def test_names_of_several_places_tell_their_place(folder: Path, bucket: Bucket) -> None:
    bucket.put(d__a=b"1", d__e__f=b"2")
    assert lines("ls", folder, bucket.url("d"), f"{folder}/inner/") == [
        *(f"{folder}/{name}" for name in ("a b.txt", "big", "inner/")),
        bucket.url("d/a"),
        bucket.url("d/e/"),
        f"{folder}/inner/c",
    ]
    assert [line.split()[-1] for line in lines("du", "-d", 1, bucket.url("d"), f"{folder}/inner")] == [
        bucket.url("d/e/"),
        bucket.url("d"),
        f"{folder}/inner",
    ]


def test_stat_of_a_directory_is_not_that_of_its_objects(bucket: Bucket) -> None:
    bucket.put(d__a=b"1", d__b=b"2")
    for place in (bucket.url("d"), bucket.url("d/")):
        assert [(entry["url"], entry["kind"]) for entry in objects("stat", "--json", place)] == [
            (bucket.url("d/"), "directory")
        ]
