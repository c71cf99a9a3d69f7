"""Errors are one line with an exit code; no secret is in any output; the help has examples; completion works."""

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from aioprefetch.cli import main
from aioprefetch.cli.app import COMMANDS, app
from aioprefetch.sync import run as run_on_loop
from aioprefetch.testing import FaultServer
from tests.repository.source_tree import ROOT
from tests.unit.cli.commands import Bucket, run

CANARY = "canary5ecret"


def test_errors_are_one_line(folder: Path) -> None:
    for arguments, code, message in (
        (["cat", "/nowhere/at/all"], 1, "NotFound"),
        (["stat", "file:///nowhere/at/all"], 1, "NotFound"),
        (["cat", "gopher://host/x"], 2, "unknown scheme 'gopher'"),
        (["du", "s3://"], 2, "bucket"),
        (["ls", "-R", "s3://"], 2, "-R is for one bucket"),
        (["ls", "gs://"], 1, "hint: name one: gs://bucket/"),
        (["stat", f"{folder}/none/none"], 1, "(NotFound)"),
        (["cat", "-"], 2, "- is neither standard input nor output here"),
        (["sync", f"{folder}/big", "-"], 2, "a file of this name is ./-"),
        (["ls", "https://127.0.0.1:9/"], 1, "hint: over https give the URL of a file"),
        (["ls", "file://nowhere/x"], 1, "hint: file:///nowhere/x has three slashes"),
        (["ls", "--endpoint-url", "http://192.0.2.1", "s3://bucket/"], 2, "or -o allow_http=true where"),
        (["ls", "--profile", "missing", "s3://bucket/"], 2, "check --profile and AWS_PROFILE"),
        (["cat", f"{folder}/big", "--region", "eu-west-1"], 2, "unknown option 'region'"),
        (["cat", f"{folder}/big", "-o", "memory_bytes=lots"], 2, "memory_bytes='lots' is not a size above 0"),
        (
            ["cat", "-o", "attempts-max=1", "--anonymous", "--endpoint-url=http://127.0.0.1:9", "s3://bucket/k"],
            1,
            "doctor",
        ),
    ):
        result = run(*arguments, code=code)
        assert result.stdout == ""
        assert message in result.stderr
        assert result.stderr.startswith("aioprefetch: ")
        assert result.stderr.count("\n") == 1
        if "three slashes" in message:  # A note, and no error.
            continue
        assert "Traceback" in run(arguments[0], "--debug", *arguments[1:], code=code).stderr
        assert "Traceback" in run("--debug", *arguments, code=code).stderr
    assert "Usage: " in run(code=2).stderr  # The help is what a person without arguments looks for.


def test_wrong_arguments_are_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    """With the command whose help tells more."""
    for wrong, message in (
        (["cat"], "Missing argument 'PLACE...'; hint: aioprefetch cat --help"),
        (["cp", "one"], "; hint: aioprefetch cp --help"),
        (["lss"], "Did you mean ls?; hint: aioprefetch --help"),
        (["cat", "--rnage", "0:1", "y"], "Did you mean '--range'?; hint: aioprefetch cat --help"),
        (["cat", "-o", "name", "x"], "NAME=VALUE; hint: aioprefetch cat --help"),
        (["cp", "--concurrency", "0", "a", "b"], "0 is not in the range x>=1; hint: aioprefetch cp --help"),
    ):
        assert main(wrong) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("aioprefetch: ")
        assert shown.endswith(f"{message}\n")
        assert shown.count("\n") == 1


def test_main_returns_the_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in ((["ls", str(folder)], 0), (["ls", f"{folder}/none"], 1), (["ls", "-x"], 2), (["none"], 2)):
        assert main(arguments) == code
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("aioprefetch ")


def test_options_of_an_operator(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By ``-o``, a secret by the name of its variable, and those of one side of a copy."""
    bucket.put(k=b"content")
    options = {"endpoint_url": bucket.server.endpoint_url, "region": bucket.server.region}
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT_URL", "REGION"):
        monkeypatch.delenv(f"AIOPREFETCH_{name}")
    monkeypatch.setenv("OWN_KEY", bucket.server.access_key_id)
    monkeypatch.setenv("OWN_SECRET", bucket.server.secret_access_key)
    options |= {"access_key_id": "env:OWN_KEY", "secret_access_key": "env:OWN_SECRET", "block_bytes": "1MiB"}
    own = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    assert run("cat", *own, bucket.url("k")).stdout == "content"
    sided = [text for name, value in options.items() for text in ("--src-o", f"{name}={value}")]
    run("cp", *sided, bucket.url("k"), tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == b"content"


@pytest.fixture
def web_server() -> Iterator[FaultServer]:
    """A live HTTP server with a Parquet file, which it gives for any query."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(10)}), sink)
    server = FaultServer({"t.parquet": sink.getvalue()})
    run_on_loop(server.__aenter__())
    yield server
    run_on_loop(server.__aexit__(None, None, None))


def test_no_output_holds_a_secret_of_a_signed_url(web_server: FaultServer, tmp_path: Path) -> None:
    """Of objects that are there, that are missing, and of a server that cannot be reached."""
    signature = f"?sig={CANARY}&X-Amz-Signature={CANARY}"
    host = f"http://user:{CANARY}@127.0.0.1:{web_server.port}"
    for signed in (f"{host}/t.parquet{signature}", f"{host}/none{signature}", f"http://127.0.0.1:9/t{signature}"):
        codes = {}
        for arguments in (
            *(["ls", *form] for form in ([], ["-l"], ["--json"])),
            *([command, *form] for command in ("stat", "du") for form in ([], ["--json"])),
            ["cat", "--range", "0:4"],
            *(["head", "--type", "parquet", *form] for form in ([], ["--json"])),
            *(["scan", "--type", "parquet", "-f", form] for form in ("jsonl", "csv", "arrow")),
            *(["plan", "--type", "parquet", *form] for form in ([], ["--json"])),
            *(["plan", "--range", "0:4", *form] for form in ([], ["--json"])),
            *(["demo", *form] for form in ([], ["--json"])),
            *(["rm", *form] for form in ([], ["--dry-run"], ["--json"])),
        ):
            for debug in ([], ["--debug"]):
                result = CliRunner().invoke(app, [*debug, *arguments, "-o", "attempts_max=1", signed])
                assert CANARY not in result.output + result.stderr, (arguments, signed, result.output)
            codes[" ".join(arguments)] = result.exit_code
        copied = CliRunner().invoke(app, ["cp", "--json", "-o", "attempts_max=1", signed, f"{tmp_path}/copy"])
        assert CANARY not in copied.output + copied.stderr
        if "/t.parquet" in signed:
            assert {name for name, code in codes.items() if code} == {"rm", "rm --json"}, codes
            assert copied.exit_code == 0, copied.stderr


def test_no_output_holds_a_secret(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    bucket.put(k=b"content")
    monkeypatch.setenv("AIOPREFETCH_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("OWN_SECRET", CANARY)
    signed = f"http://user:{CANARY}@127.0.0.1:9/k?X-Amz-Signature={CANARY}"
    fast = ("-o", "attempts_max=1")
    for arguments in (
        ["cat", bucket.url("none")],
        ["ls", "-l", bucket.url()],
        ["stat", "--json", bucket.url("k")],
        ["cat", "-o", f"secret_access_key={CANARY}", bucket.url("k")],
        ["cat", "-o", "session_token=env:OWN_SECRET", bucket.url("none")],
        ["cp", "--json", *fast, signed, f"{folder}/other", f"{folder}/none/"],
        *(["--debug", command, *fast, signed] for command in ("cat", "ls", "stat", "du", "rm")),
        ["cp", signed, signed, f"{folder}/"],
        ["ls", "--endpoint-url", f"http://u:{CANARY}@127.0.0.1:9", *fast, bucket.url()],
        ["doctor", "--json", "-o", "secret_access_key=env:OWN_SECRET", "-o", f"access_key_id={CANARY}", bucket.url()],
        ["--debug", "doctor", bucket.url("k")],
    ):
        result = CliRunner().invoke(app, arguments)
        assert CANARY not in result.output + result.stderr, arguments


def test_every_command_has_help_with_examples() -> None:
    whole = run("--help").output
    narrow = CliRunner().invoke(app, ["--help"], terminal_width=80).output
    assert "..." not in narrow.partition("Commands:")[2]  # No summary is cut.
    for name in COMMANDS:
        shown = run(name, "--help").output
        assert f"Examples:\n    aioprefetch {name}" in shown
        assert f"  {name} " in whole
        if name not in ("cat", "trace", "mv", "presign"):  # Bytes, the output of a program, nothing, and a URL.
            assert "--json" in shown, name


def test_completion(bucket: Bucket) -> None:
    """Of the shells that click knows: commands, local files by the shell itself, objects by a listing."""
    result = CliRunner().invoke(app, [], env={"_AIOPREFETCH_COMPLETE": "bash_source"}, prog_name="aioprefetch")
    assert "_AIOPREFETCH_COMPLETE=bash_complete" in result.output
    words = {"_AIOPREFETCH_COMPLETE": "bash_complete", "COMP_LINE": "aioprefetch s", "COMP_WORD": "s"}
    result = CliRunner().invoke(app, [], env=words, prog_name="aioprefetch")
    assert [line.split(",")[1] for line in result.output.split()] == [name for name in COMMANDS if name[0] == "s"]
    bucket.put(data__a=b"1", data__b__c=b"2", other=b"3")
    bucket.put(**{"data/\x1b[31m": b"no shell gets this name"})
    for text, places in (
        (bucket.url("da"), [bucket.url("data/")]),
        (bucket.url("data/"), [bucket.url("data/a"), bucket.url("data/b/")]),
        (bucket.url().rstrip("/"), [bucket.url("data/"), bucket.url("other")]),
        (bucket.url().rstrip("/")[:-1], [bucket.url()]),
        ("gopher://x", []),
        ("loc", ["loc"]),
    ):
        words = {"_AIOPREFETCH_COMPLETE": "zsh_complete", "COMP_WORDS": f"aioprefetch cat {text}", "COMP_CWORD": "2"}
        shown = CliRunner().invoke(app, [], env=words, prog_name="aioprefetch").output.splitlines()
        assert shown[1::3] == places, text


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_urls(bucket: Bucket, folder: Path) -> None:
    """By its own script, in bash itself, which splits words at ``:``."""
    bucket.put(data__a=b"1", data__b__c=b"2")
    source = CliRunner().invoke(app, [], env={"_AIOPREFETCH_COMPLETE": "bash_source"}, prog_name="aioprefetch").output
    (folder / "aioprefetch").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aioprefetch "$@"\n')
    (folder / "aioprefetch").chmod(0o700)
    script = f"""{source}
        compopt() {{ :; }}
        COMP_LINE='aioprefetch ls -o a=b {bucket.url("data/")}' COMP_POINT=1000
        _aioprefetch_completion {folder}/aioprefetch //{bucket.name}/data/; printf '%s\\n' "${{COMPREPLY[@]}}" """
    shown = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.splitlines() == [f"//{bucket.name}/data/a", f"//{bucket.name}/data/b/"]


def test_other_failures_are_one_line_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError(f"unexpected,\nAuthorization: Bearer {CANARY}")

    monkeypatch.setattr("aioprefetch.cli.reading.print_json", fail)
    result = run("ls", "--json", folder, code=1)
    assert result.stderr.startswith("aioprefetch: RuntimeError: unexpected, Authorization")
    assert CANARY not in result.stderr
    assert result.stderr.count("\n") == 1
    assert json.loads(json.dumps(result.stdout)) == ""
