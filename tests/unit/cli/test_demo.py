"""The demo keeps its promise: about 600 GETs for the naive reader, one for ours, the same table, honest counts."""

import contextlib
import http.client
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from aioprefetch.cli import main
from aioprefetch.cli.demo import (
    COLUMNS,
    READ_AHEAD_BYTES,
    ROW_GROUPS,
    DropOnSeekReader,
    demo_server,
    sample_parquet,
    take_count,
)
from aioprefetch.cli.printing import PlainDisplay, RichDisplay, SilentDisplay, choose_display
from aioprefetch.operator.operator import Operator
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing import CountingS3Server
from tests.probes.programs import run_installed

# The script `aioprefetch` of the wheel, where nothing is installed that the extra `demo` does not bring.
INSTALLED_DEMO = """
import sys
sys.modules |= dict.fromkeys(("pytest", "hypothesis", "blockbuster", "pyspark"))
import aioprefetch
from importlib.metadata import entry_points
assert aioprefetch.__file__.startswith(sys.argv[1]), aioprefetch.__file__
(script,) = entry_points(group="console_scripts", name="aioprefetch")
sys.exit(script.load()(["demo", "--json"]))
"""


@pytest.mark.full
def test_the_demo_of_an_installed_wheel(tmp_path: Path) -> None:
    """The command, with its numbers as JSON, far from a checkout."""
    run = run_installed(INSTALLED_DEMO, tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    numbers = json.loads(run.stdout)
    assert numbers["counted_by"] == "server"
    assert 600 <= numbers["naive"]["gets"] <= 605
    assert (numbers["aioprefetch"]["gets"], numbers["aioprefetch"]["heads"]) == (1, 0)
    assert numbers["size"] <= numbers["aioprefetch"]["bytes"] <= 1.05 * numbers["size"]
    assert numbers["equal"] is True


def test_the_demo_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A small file keeps this fast; the table names both readers and who counted."""
    monkeypatch.setattr("aioprefetch.cli.demo.sample_parquet", lambda: small_parquet(4))
    assert main(["demo"]) == 0
    shown = capsys.readouterr().out
    assert "drops its buffer on seek: 4 of 4 row groups" in shown
    assert "counted by the server" in shown
    assert "Both readers gave the same table." in shown


def test_the_pictures_of_both_readings_have_the_requests_that_the_server_counts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["demo", "--json", "--traces", str(tmp_path / "pictures")]) == 0
    numbers = json.loads(capsys.readouterr().out)
    requests = {}
    for path in (tmp_path / "pictures").iterdir():
        match = re.search(r"<h1>([\d,]+)\s+request", path.read_text("utf-8"))
        assert match is not None
        requests[path.name] = int(match[1].replace(",", ""))
    assert requests == {"naive.html": numbers["naive"]["gets"], "aioprefetch.html": numbers["aioprefetch"]["gets"]}
    assert requests == {"naive.html": 601, "aioprefetch.html": 1}


def test_the_environment_does_not_lead_the_embedded_demo_astray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Proxies and settings meant for other stores change nothing."""
    monkeypatch.setattr("aioprefetch.cli.demo.sample_parquet", lambda: small_parquet(2))
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("AIOPREFETCH_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AIOPREFETCH_BLOCK_BYTES", "256")
    monkeypatch.setenv("AIOPREFETCH_ANONYMOUS", "yes")
    assert main(["demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["aioprefetch"]["gets"] == 1


@pytest.mark.parametrize("number", ["0", "-3", "many"])
def test_the_number_of_row_groups_is_checked(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "s3://bucket/key", f"--row-groups={number}"]) == 2
    assert "--row-groups" in capsys.readouterr().err


def test_the_demo_fails_when_the_tables_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aioprefetch.cli.demo.sample_parquet", lambda: small_parquet(2))
    monkeypatch.setattr("aioprefetch.cli.demo.Comparison.is_equal", False)
    assert main(["demo"]) == 1
    assert "THE TABLES DIFFER" in capsys.readouterr().out


def small_parquet(row_groups: int) -> bytes:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": range(100 * row_groups), "b": range(100 * row_groups)}), sink, row_group_size=100)
    return bytes(sink.getvalue())


def test_the_sample_is_what_it_is_said_to_be() -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    content = sample_parquet()
    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    assert (metadata.num_row_groups, metadata.num_columns) == (ROW_GROUPS, COLUMNS)
    assert len(content) == pytest.approx(800 << 10, rel=0.02)
    assert content == sample_parquet()


@pytest.fixture
def s3_arguments(s3_server: CountingS3Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that lead the commands to the test server; credentials come from the environment."""
    monkeypatch.setenv("AIOPREFETCH_ACCESS_KEY_ID", s3_server.access_key_id)
    monkeypatch.setenv("AIOPREFETCH_SECRET_ACCESS_KEY", s3_server.secret_access_key)
    return ["--endpoint-url", s3_server.endpoint_url, "--region", s3_server.region]


@pytest.fixture
def bucket(s3_server: CountingS3Server, random_name: Callable[[], str]) -> str:
    """An empty bucket on the test server."""
    name = random_name()
    parts = urlsplit(s3_server.endpoint_url)
    with contextlib.closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as connection:
        scope = f"{s3_server.access_key_id}/20260101/{s3_server.region}/s3/aws4_request"
        connection.request("PUT", f"/{name}", headers={"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}"})
        assert connection.getresponse().status == 200
    return name


def put(server: CountingS3Server, bucket: str, key: str, content: bytes) -> str:
    operator = Operator.from_uri(
        f"s3://{bucket}",
        endpoint_url=server.endpoint_url,
        region=server.region,
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key,
    )
    with BlockingOperator(operator) as blocking:
        blocking.write(key, content)
    return f"s3://{bucket}/{key}"


def test_the_demo_on_a_file_of_ones_own(
    s3_server: CountingS3Server, bucket: str, s3_arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The clients count, and they count what the server counts."""
    url = put(s3_server, bucket, "own.parquet", small_parquet(5))
    s3_server.reset()
    assert main(["demo", url, "--json", "--row-groups", "3", *s3_arguments]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert (numbers["counted_by"], numbers["equal"]) == ("client", True)
    assert (numbers["naive"]["gets"], numbers["aioprefetch"]["gets"]) == (1 + 3 * 2, 1)
    assert s3_server.count("GET") == 1 + 3 * 2 + 1
    assert s3_server.bytes_sent == numbers["naive"]["bytes"] + numbers["aioprefetch"]["bytes"]


@pytest.mark.parametrize(("key", "content"), [("no.parquet", b"this is text, and long enough"), ("empty", b"")])
def test_what_is_no_parquet_file_is_said(
    s3_server: CountingS3Server,
    bucket: str,
    s3_arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    key: str,
    content: bytes,
) -> None:
    url = put(s3_server, bucket, key, content)
    assert main(["demo", url, *s3_arguments]) == 1
    assert "not a Parquet file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["demo", "stat", "cat"])
def test_missing_keys_and_refused_credentials_are_said(
    s3_server: CountingS3Server,
    bucket: str,
    s3_arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    assert main([command, f"s3://{bucket}/missing", *s3_arguments]) == 1
    assert "NotFound" in capsys.readouterr().err
    private = put(s3_server, bucket, "private", b"not public")
    monkeypatch.delenv("AIOPREFETCH_ACCESS_KEY_ID")
    monkeypatch.delenv("AIOPREFETCH_SECRET_ACCESS_KEY")
    assert main([command, private, "--anonymous", *s3_arguments]) == 1
    assert "PermissionDenied" in capsys.readouterr().err


def test_the_demo_server_counts_and_keeps_the_connection() -> None:
    with demo_server("counted") as server:
        parts = urlsplit(server.endpoint_url)
        with contextlib.closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as connection:
            for method in ("GET", "HEAD", "GET", "DELETE"):
                connection.request(
                    method, "/counted/missing", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=a/b/c/s3/d"}
                )
                socket = connection.sock
                connection.getresponse().read()
                assert connection.sock is socket
        count = take_count(server)
        assert (count.gets, count.heads, count.others) == (2, 1, 1)
        assert count.body_bytes > 0
        assert take_count(server).gets == 0


def test_the_naive_reader_drops_its_buffer_on_every_seek_and_only_then() -> None:
    content, fetched = bytes(range(256)) * 200, []

    def fetch(start: int, end: int) -> bytes:
        fetched.append((start, end))
        return content[start:end]

    reader = DropOnSeekReader(fetch, len(content))
    assert [reader.read(10), reader.read(10)] == [content[:10], content[10:20]]
    assert fetched == [(0, READ_AHEAD_BYTES)]
    assert reader.seek(20) == 20
    assert reader.read(10) == content[20:30]
    assert fetched[1:] == [(20, 20 + READ_AHEAD_BYTES)]
    reader.seek(-5, io.SEEK_END)
    assert (reader.read(), reader.read(), reader.tell()) == (content[-5:], b"", len(content))
    with io.BufferedReader(DropOnSeekReader(fetch, len(content))) as buffered:
        assert buffered.read() == content


def test_displays(capsys: pytest.CaptureFixture[str]) -> None:
    """Plain lines when the output is no terminal; nothing when a program reads it; rich draws the same."""
    assert isinstance(choose_display(silent=True), SilentDisplay)
    assert isinstance(choose_display(silent=False), PlainDisplay)
    display = PlainDisplay()
    display.table(("reader", "GETs"), [("naive", "601"), ("ours", "1")])
    table = "reader  GETs\n------  ----\nnaive    601\nours       1\n"
    assert capsys.readouterr().out == table
    display.table(("reader", "GETs"), [("naive", "601"), ("ours", "1")])
    assert capsys.readouterr().out == f"\n{table}"  # Apart from what was said before.
    with display.progress("reading", 10) as advance:
        for _ in range(10):
            advance()
    assert capsys.readouterr().out.splitlines() == [f"reading: {n} of 10 row groups" for n in (2, 4, 6, 8, 10)]


def test_rich_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    console: Any = pytest.importorskip("rich.console")
    screen = io.StringIO()
    display = RichDisplay(console.Console(file=screen, force_terminal=True, width=100))
    with display.progress("reading", 3) as advance:
        for _ in range(3):
            advance()
    display.say("[done] 3")
    display.table(("reader", "GETs"), [("naive", "601"), ("[/x][red]", "1")])
    shown = screen.getvalue()
    assert "[/x][red]" in shown
    assert "reading" in shown
    assert "3/3" in shown
    assert "[done] 3" in shown
    assert "601" in shown
