"""How a stream and a batch start, without a JVM: nothing there yet, one object, changed options, other places."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from aioprefetch.errors import ConfigInvalid, NotFound, PermissionDenied, StateConflict, UntrustedMetadata
from aioprefetch.spark.data_source import AioPrefetchDataSource
from aioprefetch.spark.hadoop import SessionSettings, settings_in
from aioprefetch.testing import CountingS3Server
from tests.spark.files import records, write_csv, write_jsonl, write_parquet
from tests.spark.test_stream_reader import IDS, Query, data_source

KEYS = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}


def in_session(session: SessionSettings, options: dict[str, str]) -> AioPrefetchDataSource:
    class Registered(AioPrefetchDataSource):
        pass

    Registered.session = session
    return Registered(options)


def read_all(source: AioPrefetchDataSource) -> list[int]:
    reader = source.reader(IDS)
    return sorted(one for part in reader.partitions() for batch in reader.read(part) for one in batch["id"].to_pylist())


def test_a_batch_without_files_is_an_error_that_names_url_and_glob(tmp_path: Path) -> None:
    for path, which in ((tmp_path / "none", "none"), (tmp_path / "*.csv", "with glob='[*].csv'")):
        with pytest.raises(NotFound, match=rf"no files in file://.*{which}.*allowEmpty"):
            read_all(data_source(path, format="jsonl"))
    assert read_all(data_source(tmp_path / "none", format="jsonl", allowEmpty="true")) == []


def test_a_batch_of_files_without_records_is_empty(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", records(0, 10))
    assert read_all(data_source(tmp_path, filters='[["id", ">", 100]]')) == []
    (tmp_path / "a.parquet").unlink()
    (tmp_path / "a.jsonl").touch()
    assert read_all(data_source(tmp_path)) == []


def test_options_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="cleanSource, maxFilesPerTrigger: only for streams"):
        data_source(tmp_path, cleanSource="delete", maxFilesPerTrigger="1").reader(IDS)
    with pytest.raises(ConfigInvalid, match="allowEmpty: only for batches"):
        data_source(tmp_path, stateLocation=str(tmp_path / "_s"), allowEmpty="true").streamReader(IDS)


def test_a_stream_waits_for_its_first_file_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(tmp_path / "source" / "*.jsonl", tmp_path / "state")
    with caplog.at_level(logging.WARNING, "aioprefetch"):
        assert query.batch() is None
        assert query.batch() is None
    (said,) = [one.getMessage() for one in caplog.records]
    assert "there are no files in file://" in said
    assert "with glob='*.jsonl' so far; the stream waits" in said
    write_jsonl(tmp_path / "source" / "a.jsonl", records(0, 3))
    assert query.batch() == [0, 1, 2]
    query.reader.stop()


def test_a_stream_of_one_object_is_of_that_name_alone_for_ever(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("a[1].jsonl", "a1.jsonl", "b.jsonl"):
        write_jsonl(source / name, records(0, 3))
    # A name with a wildcard in it cannot be asked for.
    query = Query(source / "b.jsonl", tmp_path / "state", overwrites="reread", onMissing="skip")
    inferred = data_source(source / "b.jsonl", stateLocation=str(tmp_path / "state")).schema()
    assert inferred.names == ["id", "name", "price"]
    assert query.batch() == [0, 1, 2]
    (source / "b.jsonl").unlink()
    query.restart()
    assert query.batch() is None
    write_jsonl(source / "b.jsonl", records(5, 7))
    query.restart()
    assert query.batch() == [5, 6]
    query.reader.stop()


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ({"format": "csv"}, {"format": "text"}, "format was 'csv' and is 'text'"),
        ({}, {"multiLine": "true", "header": "true"}, "header was False and is True, multiLine was False and is True"),
        ({"sep": ";"}, {}, "sep was ';' and is ','"),
        ({}, {"encoding": "latin-1"}, "encoding was 'utf-8' and is 'latin-1'"),
    ],
)
def test_a_changed_option_of_the_format_is_named(
    tmp_path: Path, before: dict[str, str], after: dict[str, str], named: str
) -> None:
    (tmp_path / "source").mkdir()
    write_csv(tmp_path / "source" / "a.csv", records(0, 10))
    first = Query(tmp_path / "source", tmp_path / "state", **before)
    first.reader.stop()
    with pytest.raises(StateConflict, match=f"options have changed.*: {named}"):
        Query(tmp_path / "source", tmp_path / "state", **after)
    again = Query(tmp_path / "source", tmp_path / "state", **before, unknownFields="fail", batchRows="3")
    again.reader.stop()
    kept = tmp_path / "state" / "stream.json"
    kept.write_bytes(kept.read_bytes().replace(b'"object":false', b'"object":true'))
    with pytest.raises(UntrustedMetadata, match="its checksum does not fit"):
        Query(tmp_path / "source", tmp_path / "state", **before)


@pytest.fixture
def buckets(s3_server: CountingS3Server, random_name: Callable[[], str]) -> Any:
    """Three buckets with keys of their own in the session, and what the session says."""
    names = [random_name() for _ in range(3)]
    client = boto3.client("s3", endpoint_url=s3_server.endpoint_url, region_name="us-east-1", **KEYS)
    entries: dict[str, str] = {}
    for number, name in enumerate(names):
        client.create_bucket(Bucket=name)
        settings = {"endpoint": s3_server.endpoint_url, "access.key": f"AKID{number}", "secret.key": f"SECRET{number}"}
        entries |= {f"fs.s3a.bucket.{name}.{key}": value for key, value in settings.items()}
    yield names, settings_in(entries), client
    client.close()


def test_source_state_and_the_one_that_is_followed_have_keys_of_their_own(
    buckets: Any, tmp_path: Path, s3_server: CountingS3Server
) -> None:
    (source, state, dead), found, client = buckets
    write_jsonl(tmp_path / "a.jsonl", records(0, 5))
    client.upload_file(str(tmp_path / "a.jsonl"), source, "in/a.jsonl")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing of the kind PAR1")
    client.upload_file(str(tmp_path / "b.parquet"), source, "in/b.parquet")

    def query(**options: str) -> Query:
        made = Query.__new__(Query)
        texts = {"path": f"s3a://{source}/in", "listIntervalSeconds": "0", "onCorrupt": "quarantine", **options}
        made._make = lambda: in_session(found, texts).streamReader(IDS)
        made.reader = made._make()
        made.start = made.reader.initialOffset()
        return made

    first = query(stateLocation=f"s3://{state}/one")
    assert first.batch() == [0, 1, 2, 3, 4]
    s3_server.reset()
    second = query(
        stateLocation=(tmp_path / "state").as_uri(),
        attachTo=f"s3://{state}/one",
        quarantineLocation=f"s3://{dead}/dead",
        region="us-east-1",
    )
    assert second.batch() == [0, 1, 2, 3, 4]
    for one in (second, first):
        one.reader.stop()
    requests = s3_server.requests
    keys = {name: {request.access_key_id for request in requests if name in request.target} for name in (source, state)}
    assert keys == {source: {"AKID0"}, state: {"AKID1"}}
    (written,) = client.list_objects_v2(Bucket=dead, Prefix="dead/")["Contents"]
    assert b"b.parquet" in client.get_object(Bucket=dead, Key=written["Key"])["Body"].read()


def test_an_error_names_keys_of_the_session_that_were_not_used(
    buckets: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source, _, _), found, _ = buckets
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {
        "path": f"s3a://{source}/in",
        "endpointUrl": "http://127.0.0.1:9",
        "region": "us-east-1",
        "format": "jsonl",
    }
    with pytest.raises(PermissionDenied, match=r"no credentials were found.*hint: the session's fs\.s3a settings are"):
        read_all(in_session(found, options))
    assert "their keys were not used" in caplog.text
