"""Text options into settings: every option, every wrong value, precedence over the session, and no secret shown."""

import datetime as dt
import decimal
import inspect
import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator import Operator
from aioprefetch.operator.from_uri import OPERATOR_OPTIONS, store_options, supported_schemes
from aioprefetch.options import SECONDS_OR_ZERO, SIZE, Integer, Option, Seconds
from aioprefetch.source.list.pages import Selection
from aioprefetch.source.options import FILTERS, filters_to_text
from aioprefetch.spark.hadoop import ALL_BUCKETS, SessionSettings
from aioprefetch.spark.options import SOURCE_OPTIONS, option_name, store_options_of_all
from aioprefetch.spark.settings import SourceSettings, parse_options
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of

# The defaults of spark.redaction.regex and spark.sql.redaction.options.regex.
REDACTED = re.compile(r"(?i)secret|password|token|access[.]?key|url")

STORES = store_options_of_all()
ROWS: dict[str, Option] = {
    **{one.name: one.row for one in SOURCE_OPTIONS.values()},
    **{row.spark: row for row in STORES.values()},
}
SECRETS = frozenset(name for name, row in STORES.items() if row.kind.is_secret)
SECRET = "hunter2hunter2"
MOVE = {"cleanSource.moveDestination": "s3://bucket/done"}


def parsed(session: SessionSettings | None = None, /, **options: str) -> SourceSettings:
    return parse_options({"path": "s3://bucket/dir", **options}, session)


def test_names_count_in_any_case() -> None:
    settings = parsed(MaxFilesPerTrigger="7", maxbytespertrigger="64m", INFERSAMPLEFILES="3")
    assert (settings.admission.files_max, settings.admission.bytes_max) == (7, 64 << 20)
    assert settings.formats.sample_files == 3


@pytest.mark.parametrize(
    ("paths", "root", "taken", "passed_over"),
    [
        (["/x/{a,b}1.json"], "file:///x", ["a1.json", "b1.json"], ["c1.json", "a1.jsonl"]),
        (["/x/a/", "/y/b,c"], "file:///", ["x/a/k=1/1.csv", "y/b,c", "y/b,c/1"], ["x/b/1", "y/b", "y/c"]),
        (["s3://b/k=1/*.csv", "s3://b/k=2"], "s3://b", ["k=1/1.csv", "k=2/3/1"], ["k=1/1.txt", "k=3/1.csv"]),
        (["s3://b/a/*", "s3://b/c/**/[ab]{1,2}.json"], "s3://b", ["a/1.csv", "c/d/a2.json"], ["c/d/a3.json"]),
    ],
)
def test_several_paths_and_alternatives_are_one_directory_with_a_glob(
    paths: list[str], root: str, taken: list[str], passed_over: list[str]
) -> None:
    settings = parse_options({"paths": json.dumps(paths)})
    selection = Selection(settings.listing.glob)
    assert settings.location.root == root
    assert [key for key in (*taken, *passed_over) if selection.takes(key)] == taken


def test_a_filter_of_names_holds_for_each_of_several_paths() -> None:
    settings = parse_options({"paths": '["/x/a", "/x/b/*"]', "pathGlobFilter": "*.{csv,json}"})
    selection = Selection(settings.listing.glob)
    keys = ["a/1.csv", "a/c/1.json", "b/1.json", "a/1.txt", "c/1.csv"]
    assert [key for key in keys if selection.takes(key)] == keys[:3]


def test_sparks_words_for_policies_are_ours() -> None:
    failures = parsed(ignoreMissingFiles="true", ignoreCorruptFiles="false", mode="dropmalformed").failures
    assert (failures.on_missing, failures.on_corrupt, failures.on_corrupt_record) == ("skip", "fail", "skip")


def test_every_group_gets_its_options() -> None:
    settings = parsed(
        format="CSV", sep="\\t", quote="", nullValue="NA", lineSep="\\r\\n", header="false", multiLine="true",
        onMissing="quarantine", stateLocation="s3://bucket/state", unknownFields="rescue", overwrites="reread",
        sweepPagesPerTrigger="0", listAheadPages="7", listRetrySeconds="90", taskSlots="3",
        splitFiles="false", assign="size", targetPartitionBytes="1k", batchRows="5", metadataColumns="_mtime, _file",
        columns="id, name", cleanSource="move", **{"cleanSource.moveDestination": "s3://bucket/done"},
    )  # fmt: skip
    formats = settings.formats
    assert (formats.format, formats.delimiter, formats.quote, formats.null_value) == ("csv", "\t", None, "NA")
    assert (formats.line_separator, formats.header, formats.multi_line) == ("\r\n", False, True)
    assert (settings.failures.on_missing, formats.unknown_fields) == ("quarantine", "rescue")
    assert (settings.listing.overwrites, settings.listing.sweep_pages, settings.listing.ahead_pages) == ("reread", 0, 7)
    assert settings.listing.retry_seconds == 90.0
    assert (settings.partitioning.split_files, settings.partitioning.assign) == (False, "size")
    assert (settings.partitioning.target_bytes, settings.reading.batch_rows) == (1024, 5)
    assert settings.partitioning.slots == 3
    assert settings.metadata_columns == ("_mtime", "_file")
    assert settings.columns == ("id", "name")
    assert (settings.clean, settings.clean_destination) == ("move", "s3://bucket/done")


@each_of(("sparks", "ours"), [("json", "jsonl"), ("binaryFile", "binary"), ("BINARYFILE", "binary")])
def test_sparks_own_names_of_formats(sparks: str, ours: str) -> None:
    assert parsed(format=sparks).formats.format == ours


def test_columns_as_json_may_hold_commas() -> None:
    assert parsed(columns='["a,b", "c"]').columns == ("a,b", "c")


def test_all_metadata_columns_at_once() -> None:
    assert parsed(metadataColumns="true").metadata_columns == ("_file", "_offset", "_etag", "_mtime")
    assert parsed(metadataColumns="false").metadata_columns == ()
    assert parsed(metadataColumns="_metadata").metadata_columns == ("_metadata",)


def test_keys_of_open_file_under_all_prefixes() -> None:
    settings = parse_options(
        {
            "path": "s3://b/x",
            "openFile.option.fs.option.openfile.read.policy": "random",
            "mapreduce.job.input.file.must.fs.option.openfile.buffer.size": "4096",
        }
    )
    assert settings.reading.open_file == {
        "mapreduce.job.input.file.option.fs.option.openfile.read.policy": "random",
        "mapreduce.job.input.file.must.fs.option.openfile.buffer.size": "4096",
    }


@each_of(
    ("name", "value", "named"),
    [
        ("maxFilesPerTriger", "1", "maxFilesPerTrigger"),
        ("max_files", "1", "there is no option 'max_files'"),
        ("quxx", "1", "docs/reference/spark-options.md"),
        ("maxFilesPerTrigger", "0", "at least 1"),
        ("maxFilesPerTrigger", "1.5", "integer"),
        ("taskSlots", "0", "at least 1"),
        ("listAheadPages", "-1", "at least 0"),
        ("maxBytesPerTrigger", "10 parsecs", "64m"),
        ("maxBytesPerTrigger", "0", "above 0"),
        ("header", "maybe", "true or false"),
        ("format", "avro", "parquet"),
        ("onCorrupt", "ignore", "quarantine"),
        ("listIntervalSeconds", "nan", "seconds"),
        ("sep", "||", "one character"),
        ("sep", "ä", "of ASCII"),
        ("quote", "\n", "ends no line"),
        ("columns", "a,,b", "list of different names"),
        ("columns", "a,a", "different names"),
        ("filters", "id > 3", "JSON"),
        ("filters", '{"id": 3}', "JSON list"),
        ("filters", '[["id", ">"]]', "clauses"),
        ("filters", '[["day", "=", {"$day": "x"}]]', "\\$date"),
        ("filters", '[["day", "=", {"$date": "x"}]]', "\\$date"),
        ("metadataColumns", "_size", "_mtime"),
        ("paths", '["s3://a/b", "s3://b/c"]', "of one store"),
        ("cleanSource", "move", "moveDestination"),
        ("cleanSource.moveDestination", "s3://b/x", "cleanSource=move"),
        ("onMissing", "quarantine", "quarantineLocation"),
        ("mode", "strict", "FAILFAST"),
        ("mergeSchema", "false", "as is done always"),
        ("stateLocation", "s3://bucket/dir/state", "within the path"),
        ("stateLocation", "s3://bucket/*/state", "wildcard"),
        ("followSymlinks", "true", "means nothing for s3"),
        ("secretHeaders", "X", "means nothing for s3"),
        ("proxiesUrl", "X", "the option proxiesUrl is not a JSON object"),
        ("region", "x/y", "the option region='x/y' is not a valid region"),
        ("encoding", "utf-99", "an encoding of text that Python has"),
        ("encoding", "base64", "an encoding of text that Python has"),
        ("timeZone", "+٠٢:00", r"Europe/Berlin, UTC or \+02:00"),
        ("timeZone", "Mars/Olympus", r"Europe/Berlin, UTC or \+02:00"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(name: str, value: str, named: str) -> None:
    with pytest.raises(ConfigInvalid, match=named):
        parsed(**{name: value})


NUMBERS = {name: row for name, row in ROWS.items() if isinstance(row.kind, Integer | Seconds) and name != "partBytes"}


def test_numbers_have_digits_of_ascii() -> None:
    wrong = ("²", "1²", "٣", "\uff11", "1_0", "+1", "-1", "1e999", "0x1", "9" * 5000, "inf", "nan", "7 7", "")
    assert len(NUMBERS) > 20
    for name, row in NUMBERS.items():
        assert row.read(" 7 ", name) == 7, name
        for text in wrong:
            with pytest.raises(ConfigInvalid, match=rf"{name}=.* is not a"):
                row.read(text, name)


@each_of(("text", "number"), [("0", 0.0), (".5", 0.5), ("5.", 5.0), ("0.25", 0.25), ("1e-05", 1e-05)])
def test_seconds(text: str, number: float) -> None:
    assert SECONDS_OR_ZERO.parsed(text) == number


@each_of(
    ("options", "named"),
    [
        (
            {"format": "parquet", "header": "true", "sep": ";"},
            "format=parquet has no use .*header is for csv; sep is for",
        ),
        ({"format": "binaryFile", "lineSep": "x"}, "format=binary .*lineSep is for jsonl, csv, text"),
        ({"format": "json", "quote": "'"}, "format=jsonl .*quote is for csv"),
        ({"format": "parquet", "compression": "gzip"}, "compression is for jsonl, csv, text"),
        ({"format": "lance", "encoding": "latin-1"}, "encoding is for"),
        ({"FORMAT": "text", "MultiLine": "false"}, "multiLine is for csv"),
    ],
)
def test_options_that_a_format_has_no_use_for(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigInvalid, match=named):
        parsed(**options)
    without = {name: value for name, value in options.items() if name.lower() != "format"}
    assert parsed(**without).formats.format is None


def test_options_that_every_format_has_a_use_for() -> None:
    for name in ("parquet", "jsonl", "csv", "text", "binary", "lance"):
        for compression in ("auto", "none"):
            options = {"timeZone": "+02:00", "inferSampleFiles": "3", "unknownFields": "fail"}
            assert parsed(format=name, compression=compression, **options).formats.time_zone == "+02:00"


def test_the_zone_of_the_session_is_looked_up_where_there_are_times() -> None:
    assert parsed(sessionTimeZone="PST", format="binary").formats.time_zone == "PST"
    assert parsed(sessionTimeZone="PST", timeZone="UTC").formats.time_zone == "UTC"
    assert parsed(timeZone="utc").formats.time_zone == "utc"
    assert parsed().formats.time_zone is None
    session = SessionSettings(time_zone="Europe/Berlin")
    assert parse_options({"path": "s3://b"}, session).formats.time_zone == "Europe/Berlin"
    assert parse_options({"path": "s3://b", "sessionTimeZone": "UTC"}, session).formats.time_zone == "UTC"


def test_two_names_of_one_option() -> None:
    with pytest.raises(ConfigInvalid, match="sep and delimiter"):
        parsed(sep=",", delimiter=";")


def test_without_a_path() -> None:
    with pytest.raises(ConfigInvalid, match=r"no path.*CREATE TEMPORARY VIEW"):
        parse_options({})
    with pytest.raises(ConfigInvalid, match=r"no path is given: load\(\) takes a URL such as s3://bucket/prefix "):
        parse_options({"header": "true"})


def test_a_table_of_the_catalog_is_recognised_by_its_properties() -> None:
    # As Spark 4.3.0 asks for the schema of CREATE TABLE t USING aioprefetch OPTIONS (path '/x', header 'true').
    asked = {
        "location": "file:/x", "option.header": "true", "owner": "root", "header": "true", "path": "file:/x",
        "provider": "aioprefetch",
    }  # fmt: skip
    with pytest.raises(ConfigInvalid, match=r"hand no options.*CREATE TEMPORARY VIEW"):
        parse_options(asked)
    with pytest.raises(ConfigInvalid, match="there is no option 'owner'"):
        parse_options({"path": "/x", "owner": "root"})


def test_a_state_beside_the_source_or_hidden_in_it_is_fine() -> None:
    assert parsed(stateLocation="s3://bucket/dir2").state_location == "s3://bucket/dir2"
    assert parsed(stateLocation="s3://bucket/dir/_state/").state_location == "s3://bucket/dir/_state"
    settings = parse_options({"path": "s3://bucket/dir/*.jsonl", "stateLocation": "s3://bucket/dir/state"})
    assert settings.state_location == "s3://bucket/dir/state"
    with pytest.raises(ConfigInvalid, match="within the path"):
        parsed(stateLocation="s3://bucket/dir/_state", hiddenFiles="true")


@each_of(
    ("path", "state"),
    [
        ("s3://b/landing", "s3a://b/landing/state"),
        ("s3a://b/landing", "s3://b/landing/state"),
        ("s3a://b/landing//", "S3://B/landing/state//"),
        ("s3://b", "s3a://b/state"),
        ("s3://b/landing/*/m*.json", "s3://b/landing/state"),
        ("s3://b/landing/*/snap*", "s3://b/landing/state"),
        ("/tmp/x", "file:///tmp/x/state"),
    ],
)
def test_a_state_in_the_source_is_found_under_another_spelling(path: str, state: str) -> None:
    with pytest.raises(ConfigInvalid, match="stateLocation lies within the path"):
        parse_options({"path": path, "stateLocation": state})


@each_of(
    ("options", "named"),
    [
        ({"onCorrupt": "skip"}, "does not go with onCorrupt=skip"),
        ({"onMissing": "skip"}, "onMissing=quarantine"),
        ({"onChanged": "skip", "onCorrupt": "quarantine"}, "onChanged=skip"),
        ({"onCorrupt": "quarantine", "quarantineLocation": "s3://bucket/q"}, "leave quarantineLocation out"),
        ({"attachTo": "s3://bucket/other"}, "does not go with attachTo"),
    ],
)
@each_of("mode", [{"cleanSource": "delete"}, {"cleanSource": "move", **MOVE}])
def test_files_that_may_be_unread_are_not_cleaned(options: dict[str, str], named: str, mode: dict[str, str]) -> None:
    with pytest.raises(ConfigInvalid, match=named):
        parsed(stateLocation="s3://bucket/state", **mode, **options)
    parsed(stateLocation="s3://bucket/state", onCorrupt="quarantine", onMissing="fail", **mode)
    parsed(stateLocation="s3://bucket/state", **options)


@checks("source:F1")
def test_whether_files_are_split_is_left_to_stream_and_batch_unless_it_is_said() -> None:
    assert parsed().partitioning.split_files is None
    assert parsed(splitFiles="true").partitioning.split_files is True
    assert parsed(splitFiles="false").partitioning.split_files is False


def test_every_option_of_an_operator_has_a_text_form() -> None:
    targets = {row.name for row in STORES.values()}
    objects = {"credentials"}  # No text stands for a session or a provider.
    assert targets == {name for scheme in supported_schemes() for name in store_options(scheme)} - objects
    constructor = set(inspect.signature(Operator.__init__).parameters) - {"self", "service"}
    assert constructor == set(OPERATOR_OPTIONS)


@checks("reliability:K06")
def test_literal_secrets_stand_only_under_names_that_spark_redacts() -> None:
    assert {STORES[name].name for name in SECRETS} == {
        *("access_key_id", "secret_access_key", "session_token", "sse_customer_key"),
        *("proxies", "headers", "auth"),
        *("service_account_key", "account_key", "sas_key", "client_secret"),
    }
    assert [name for name in SECRETS if not REDACTED.search(name)] == []


@each_of(("scheme", "target"), [("s3", "secret_access_key"), ("gs", "service_account_key"), ("az", "sas_key")])
def test_no_repr_and_no_message_shows_a_secret(scheme: str, target: str) -> None:
    targets = set(store_options(scheme)) - {"proxies"}
    options = {STORES[name].spark: SECRET for name in SECRETS if STORES[name].name in targets - {"sse_customer_key"}}
    settings = parse_options({"path": f"{scheme}://bucket/dir", "stateLocation": f"{scheme}://other/state", **options})
    assert settings.operator[target] == SECRET
    assert settings.state_operator[target] == SECRET
    assert SECRET not in repr(settings)
    for name in SECRETS:
        with pytest.raises(ConfigInvalid) as caught:
            parsed(**{STORES[name].spark: SECRET, "sep": SECRET, "delimiter": SECRET})
        assert SECRET not in str(caught.value)


def test_settings_travel_by_pickle_with_their_keys() -> None:
    settings = parsed(accessKeyId="a", secretAccessKey="b", filters='[["day", ">", {"$date": "2026-01-31"}]]')
    assert pickle.loads(pickle.dumps(settings)) == settings
    operator = Operator.from_uri(settings.location.root, **settings.operator)
    assert operator.info.url == "s3://bucket/dir"


SESSION = SessionSettings(
    {
        ALL_BUCKETS: {
            "endpointurl": "http://store:9000",
            "allowhttp": "true",
            "accesskeyid": "K",
            "secretaccesskey": "S",
        },
        "own": {"anonymous": "true"},
    },
    slots=48,
)


def test_the_session_stands_behind_the_options() -> None:
    settings = parsed(SESSION, region="eu-central-1")
    assert settings.operator == {
        "endpoint_url": "http://store:9000",
        "allow_http": True,
        "access_key_id": "K",
        "secret_access_key": "S",
        "region": "eu-central-1",
    }
    assert parsed(SESSION, allowHttp="false").operator["allow_http"] is False
    assert settings.partitioning.slots == 48
    assert parsed(SESSION, taskSlots="3").partitioning.slots == 3
    assert parse_options({"path": "s3a://own/x"}, SESSION).operator == {"anonymous": True}
    assert parse_options({"path": "/data/x", "stateLocation": "s3://own/x"}, SESSION).operator == {}
    assert parse_options({"path": "/data/x", "stateLocation": "s3://own/x"}, SESSION).state_operator == {
        "anonymous": True
    }


def test_credentials_come_as_one() -> None:
    operator = parsed(SESSION, profile="mine").operator
    assert operator == {"endpoint_url": "http://store:9000", "allow_http": True, "profile": "mine"}


def test_keys_of_the_session_do_not_go_to_another_endpoint() -> None:
    assert parsed(SESSION, endpointUrl="https://elsewhere").operator == {"endpoint_url": "https://elsewhere"}
    assert parsed(SESSION, endpointUrl="http://store:9000").operator["access_key_id"] == "K"


@each_of(
    ("keyword", "name"),
    [
        ("on_missing", "onMissing"),
        ("max_files_per_trigger", "maxFilesPerTrigger"),
        ("endpoint_url", "endpointUrl"),
        ("sse_customer_key", "sseCustomerSecretKey"),
        ("headers", "secretHeaders"),
        ("format", "format"),
        ("openfile.option.x", "openfile.option.x"),
        ("clean_source_move_destination", "cleanSource.moveDestination"),
    ],
)
def test_keywords_of_python(keyword: str, name: str) -> None:
    assert option_name(keyword) == name


@each_of(
    ("text", "size"), [("1", 1), ("64m", 64 << 20), ("64 MB", 64 << 20), ("1GiB", 1 << 30), ("2T", 2 << 40), ("9b", 9)]
)
def test_sizes(text: str, size: int) -> None:
    assert SIZE.parsed(text) == size


values = st.one_of(
    st.integers(),
    st.text(st.characters(codec="utf-8")),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([dt.UTC, None])),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.binary(),
)
clauses = st.tuples(st.text(min_size=1), st.sampled_from(["=", "<", ">="]), values)


@given(st.lists(st.lists(clauses, min_size=1), min_size=1))
def test_filters_come_through_text_as_they_were(given_filters: list[list[tuple[str, str, object]]]) -> None:
    assert FILTERS.parsed(filters_to_text(given_filters)) == given_filters


def test_one_list_of_clauses_is_one_alternative() -> None:
    price = decimal.Decimal("1.20")
    text = filters_to_text([("id", "in", {3, 1}), ("price", ">", price)])
    assert FILTERS.parsed(text) == [[("id", "in", [1, 3]), ("price", ">", price)]]
    with pytest.raises(TypeError, match="object"):
        filters_to_text([("id", "=", object())])
