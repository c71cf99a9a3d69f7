"""The words of the command line that other tools have too: what they do, and that nothing is left out in silence."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import click
import pytest

from aioprefetch.cli.app import COMMANDS, app, run_command
from aioprefetch.cli.other_tools import OPTION_ANSWERS, SAME_OPTIONS
from aioprefetch.operator.operator import Operator
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Metadata
from tests.repository.source_tree import ROOT
from tests.unit.cli.commands import Bucket, lines, objects, run


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A small site, with a link and a temporary file in it."""
    for name in ("site/index.html", "site/logs/a.log", "site/logs/keep.html", "site/img/b.tmp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    os.symlink("index.html", tmp_path / "site" / "link.html")
    return tmp_path / "site"


def found(bucket: Bucket, path: str) -> Metadata:
    with BlockingOperator(Operator.from_uri(bucket.url())) as operator:
        return operator.stat(path)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--exclude", "*.tmp"], ["index.html", "logs/a.log", "logs/keep.html"]),
        (["--exclude", "*.tmp", "--exclude", "logs/"], ["index.html"]),
        (["--include", "*.html"], ["index.html", "logs/keep.html"]),
        (["--include", "*.html", "--include", "*.log", "--exclude", "logs/a*"], ["index.html", "logs/keep.html"]),
        (["--glob", "logs/*", "--exclude", "*.log"], ["logs/keep.html"]),
    ],
)
def test_what_is_included_and_excluded(site: Path, bucket: Bucket, options: list[str], names: list[str]) -> None:
    for verb in (["sync"], ["cp", "-r"]):
        run(*verb, *options, site, bucket.url(verb[0]))
    assert bucket.paths() == [f"{verb}/{name}" for verb in ("cp", "sync") for name in names]


def test_what_is_not_picked_is_not_deleted_either(site: Path, bucket: Bucket) -> None:
    bucket.put(a=b"", b__c=b"", kept__d=b"")
    run("sync", "--delete", "--max-delete", "2", "--exclude", "kept/", site, bucket.url())
    assert bucket.paths() == ["img/b.tmp", "index.html", "kept/d", "logs/a.log", "logs/keep.html"]
    bucket.put(x=b"", y=b"")
    assert "delete_max" not in (said := run("sync", "--delete", "--max-delete", "1", site, bucket.url(), code=1).stderr)
    assert "--delete-max 1" in said
    assert {"x", "y"} <= {*bucket.paths()}


def test_what_describes_an_object_is_written_with_it(site: Path, bucket: Bucket) -> None:
    """Also where the store would copy the object by itself, and of standard input."""
    options = ["--cache-control", "max-age=60", "--storage-class", "STANDARD_IA", "--metadata", "Of-Whom=me=you"]
    run("cp", *options, "--content-type", "text/x", f"{site}/index.html", bucket.url("one"))
    run("sync", *options, site, bucket.url("many/"))
    run("cp", *options, "-", bucket.url("stdin.html"), stdin=b"x")
    run("cp", *options, bucket.url("one"), bucket.url("copy"))
    for path, kind in (("one", "text/x"), ("many/index.html", "text/html"), ("stdin.html", "text/html")):
        one = found(bucket, path)
        assert (one.content_type, one.cache_control, one.user_metadata) == (kind, "max-age=60", {"of-whom": "me=you"})
    assert found(bucket, "copy").content_type == "text/x"
    refused = run("cp", "--content-type", "x/y", f"{site}/index.html", site / "copy.html", code=1)
    assert "files keep no content_type (Unsupported)" in refused.stderr
    assert "NAME=VALUE" in run("cp", "--metadata", "of", f"{site}/index.html", bucket.url("x"), code=2).stderr


def test_what_was_not_done_is_said(site: Path, bucket: Bucket) -> None:
    """Also where no person looks, and with a report for a program."""
    for options in ([], ["-q"], ["--json"], ["--dry-run"]):
        said = run("sync", *options, site, bucket.url("x/")).stderr
        assert said == (
            "aioprefetch: 1 passed over, such as link.html: a symbolic link; hint: --src-o follow_symlinks=true copies"
            " what links lead to\n"
        )
    run("sync", "--src-o", "follow_symlinks=true", site, bucket.url("x/"))
    assert "x/link.html" in bucket.paths()


def test_n_replaces_nothing_and_is_no_failure(site: Path, bucket: Bucket) -> None:
    bucket.put(index__html=b"old", b=b"other")
    for source, target, count in (
        (f"{site}/index.html", "b", 1),
        (f"{site}/logs/", "b/", 0),
        (f"{site}/logs/", "b/", 2),
    ):
        result = run("cp", "-n", "-r", source, bucket.url(target))
        assert (f"{count} object" in result.stderr) == (count > 0)
    assert found(bucket, "b").size == 5
    (report,) = objects("cp", "-n", "-r", "--json", f"{site}/logs/", bucket.url("b/"))
    assert (report["skipped"], report["failed"], report["copied"]) == (2, 0, 0)
    assert "left as it was, because of -n" in run("mv", "-n", bucket.url("b"), bucket.url("b/a.log")).stderr
    assert {"b", "b/a.log"} <= {*bucket.paths()}
    assert "No such option '-n'" in run("rm", "-n", bucket.url("b"), code=2).stderr


def test_size_only_leaves_what_has_the_same_size(site: Path, bucket: Bucket) -> None:
    run("sync", site, bucket.url("x/"))
    (site / "index.html").write_text("other, longer")
    (site / "logs" / "a.log").write_text("SITE/LOGS/A.LOG")
    (report,) = objects("sync", "--size-only", "--json", site, bucket.url("x/"))
    assert (report["copied"], report["skipped"]) == (1, 3)
    assert "exclude each other" in run("sync", "--size-only", "--exact", site, bucket.url("x/"), code=2).stderr


@checks("reliability:W49")
def test_mv_moves_within_one_store(site: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put(a=b"1", d__b=b"2", d__e__c=b"3")
    run("mv", bucket.url("a"), bucket.url("z"))
    run("mv", bucket.url("d/"), bucket.url("k/"))
    run("mv", bucket.url("z"), bucket.url("k/"))
    assert bucket.paths() == ["k/b", "k/e/c", "k/z"]
    monkeypatch.chdir(tmp_path)
    run("mv", "site/index.html", "home.html")
    run("mv", "home.html", "site/logs/")
    run("mv", "site/logs/", "old/")
    assert sorted(path.name for path in (tmp_path / "old").iterdir()) == ["a.log", "home.html", "keep.html"]
    assert not (tmp_path / "site" / "logs").exists()
    for source, target, code, said in (
        (bucket.url("k/z"), "z", 2, "are of two stores: cp, and then rm"),
        (bucket.url(), bucket.url("x/"), 2, "is a whole store, which has no other name"),
        (bucket.url("none"), bucket.url("x"), 1, "NotFound"),
        (bucket.url("k"), bucket.url("x"), 1, "'k/' moves what is below it"),
    ):
        assert said in run("mv", source, target, code=code).stderr
    assert bucket.paths() == ["k/b", "k/e/c", "k/z"]


def test_presign_prints_a_url_that_reads(bucket: Bucket) -> None:
    bucket.put(a=b"hello")
    (url,) = lines("presign", "--expires", "60", bucket.url("a"))
    with urlopen(url) as response:
        assert response.read() == b"hello"
    (url,) = lines("presign", "--method", "PUT", bucket.url("b"))
    assert "X-Amz-Signature=" in url
    assert "X-Amz-Expires=900" in url


def test_rm_removes_no_dot(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site)
    for place in (".", "..", "./", "../", "logs/..", "logs/.", "./.", f"{site}/.", f"file://{site}/.."):
        for options in ((), ("--yes", "-f")):
            assert "rm removes neither . nor .." in run("rm", "-r", *options, place, code=2).stderr
    assert (site / "index.html").exists()
    for place, what in (("/", "all of this machine"), (os.path.expanduser("~"), "the home directory")):
        assert f"is {what}: give --yes" in run("rm", "-r", place, code=2).stderr


def test_an_empty_bucket_is_there(bucket: Bucket, tmp_path: Path) -> None:
    assert run("ls", bucket.url()).output == ""
    assert run("ls", tmp_path).output == ""
    (tmp_path / "e").mkdir()
    assert run("ls", tmp_path / "e").output == ""
    for place in (bucket.url("x/"), bucket.url("x"), bucket.url("*.csv"), tmp_path / "none", f"{tmp_path}/none/"):
        assert run("ls", place, code=1).output.startswith("aioprefetch: ")
    assert "NotFound" in run("ls", f"s3://{bucket.name}-none/", code=1).output


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("tree x", 2, "No such command 'tree': aioprefetch ls -lR PLACE does it"),
        ("rcat x", 2, "aioprefetch cp - DST does it"),
        ("diff x", 2, "aioprefetch sync --dry-run SRC DST does it"),
        ("mb x", 2, "the tool of the store makes and removes buckets"),
        ("syncc x", 2, "Did you mean sync?"),
        ("ls --no-sign-request {0}", 2, "'anonymous' is an option of s3://"),
        ("ls -l --human-readable {0}", 0, " B  "),
        ("du --humanize --max-depth 1 {0}", 0, " B"),
        ("cp -r --dryrun --transfers 2 --only-show-errors {0}/ {0}-copy/", 0, "index.html"),
        ("cp --ignore-existing --no-progress {0}/index.html {0}/logs/a.log", 0, "left as it was, because of -n"),
        ("sync --delete-after --fast-list -P --dryrun {0}/ {0}-copy/", 0, "copy "),
        ("cat --raw {0}/index.html", 0, "site/index.html"),
        ("presign --expires-in 60 {0}/index.html", 1, "Unsupported"),
        ("ls --dryrun {0}", 2, "No such option '--dry-run'"),
        ("cp --acl public-read a b", 2, "No such option '--acl': the settings of the bucket apply; hint: "),
        ("--region x ls {0}", 2, "options of a store come after the command"),
    ],
)
def test_words_of_other_tools_are_taken_or_answered(
    site: Path, capfd: pytest.CaptureFixture[str], line: str, code: int, said: str
) -> None:
    assert run_command(line.format(site).split()) == code
    assert said in "".join(capfd.readouterr())


def test_each_option_of_the_tables_is_reached(capfd: pytest.CaptureFixture[str]) -> None:
    """A name that is taken belongs to a command, and one that is answered to none that has it."""
    context = click.Context(app)
    commands = [command for name in COMMANDS if (command := app.get_command(context, name)) is not None]
    own = {option.lstrip("-") for command in commands for one in command.params for option in one.opts}
    assert own >= {*SAME_OPTIONS, "fast-list"}
    assert not own & {name for names in SAME_OPTIONS.values() for name in names.split()}
    for answer, names in OPTION_ANSWERS.items():
        for name in names.split():
            assert run_command(["stat", name, "x"]) == 2
            assert f"No such option '{name}': {answer};" in capfd.readouterr().err


def test_listings_by_size_and_time(tmp_path: Path) -> None:
    for number, (name, size) in enumerate({"a": 5, "b": 50, "c": 1}.items()):
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, (1e9 + number, 1e9 + number))
    (tmp_path / "d").mkdir()
    assert lines("ls", "-S", tmp_path) == ["b", "a", "c", "d/"]
    assert lines("ls", "-a", "-t", tmp_path) == ["c", "b", "a", "d/"]


def test_a_line_for_each_object(site: Path, bucket: Bucket) -> None:
    bucket.put(old=b"")
    done = run("sync", "-v", "--checksum", "--delete", "--exclude", "img/", site, bucket.url())
    assert sorted(done.stdout.splitlines()) == [
        "copy index.html -> index.html",
        "copy logs/a.log -> logs/a.log",
        "copy logs/keep.html -> logs/keep.html",
        "delete old",
    ]
    assert done.stderr.count("\n") == 1  # The link, which was passed over.
    assert run("cp", "-v", "--json", f"{site}/index.html", bucket.url("b")).stderr == "copy index.html -> b\n"


PRINTS_MODULES = "import sys; from aioprefetch.cli.app import run_command; run_command(['--help']); print(*sys.modules)"


def test_help_loads_no_command() -> None:
    """Its line of each begins as the help of that."""
    done = subprocess.run([sys.executable, "-c", PRINTS_MODULES], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = [name for name in done.stdout.splitlines()[-1].split() if name.startswith("aioprefetch.cli")]
    assert loaded == ["aioprefetch.cli", "aioprefetch.cli.app"]
    for name, (_, summary) in COMMANDS.items():
        found = app.get_command(click.Context(app), name)
        assert found is not None
        assert summary.split()[0] == (found.help or "").split()[0]
