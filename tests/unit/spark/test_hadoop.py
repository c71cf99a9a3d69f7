"""Settings of S3A as options: endpoints, keys, buckets with their own, providers, and the files they may be in."""

from pathlib import Path

from aioprefetch.spark.hadoop import (
    ALL_BUCKETS,
    SLOTS_UNBOUND,
    SessionSettings,
    as_options,
    from_files,
    settings_in,
    slots_of,
)
from tests.profile import each_of

SECRET = "hunter2hunter2"


def test_endpoint_region_and_keys() -> None:
    found = settings_in(
        {
            "spark.hadoop.fs.s3a.endpoint": "store.example:9000",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "K",
            "spark.hadoop.fs.s3a.secret.key": SECRET,
            "spark.hadoop.fs.s3a.session.token": "T",
            "spark.hadoop.fs.s3a.endpoint.region": "eu-west-1",
            "spark.executor.memory": "1g",
        }
    )
    assert found.options("any") == {
        "endpointurl": "http://store.example:9000",
        "allowhttp": "true",
        "region": "eu-west-1",
        "addressingstyle": "path",
        "accesskeyid": "K",
        "secretaccesskey": SECRET,
        "sessiontoken": "T",
    }
    assert SECRET not in repr(found)


def test_what_was_set_on_the_session_itself_wins() -> None:
    found = settings_in({"fs.s3a.endpoint": "https://b", "spark.hadoop.fs.s3a.endpoint": "https://a"})
    assert found.options("x")["endpointurl"] == "https://b"


@each_of(
    ("endpoint", "options"),
    [
        ("", {}),
        ("s3.amazonaws.com", {}),
        ("https://s3.example", {"endpointurl": "https://s3.example"}),
        ("s3.eu-west-3.amazonaws.com", {"endpointurl": "https://s3.eu-west-3.amazonaws.com", "region": "eu-west-3"}),
    ],
)
def test_endpoints(endpoint: str, options: dict[str, str]) -> None:
    assert as_options({"endpoint": endpoint}) == options


def test_a_bucket_has_its_own_settings_over_those_for_all() -> None:
    found = settings_in(
        {
            "fs.s3a.endpoint": "https://a",
            "fs.s3a.access.key": "K",
            "fs.s3a.secret.key": "S",
            "fs.s3a.session.token": "T",
            "fs.s3a.bucket.my.logs.endpoint.region": "us-west-2",
            "fs.s3a.bucket.my.logs.access.key": "K2",
            "fs.s3a.bucket.my.logs.secret.key": "S2",
            "fs.s3a.bucket.public.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider",
        }
    )
    assert found.options("my.logs") == {
        "endpointurl": "https://a",
        "region": "us-west-2",
        "accesskeyid": "K2",
        "secretaccesskey": "S2",
    }
    assert found.options("public") == {"endpointurl": "https://a", "anonymous": "true"}
    assert found.options("other")["sessiontoken"] == "T"


@each_of(
    ("provider", "options"),
    [
        ("org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider", {"accesskeyid": "K", "secretaccesskey": "S"}),
        ("software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider", {}),
        ("org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider", {"anonymous": "true"}),
    ],
)
def test_providers_decide_whether_keys_count(provider: str, options: dict[str, str]) -> None:
    assert as_options({"aws.credentials.provider": provider, "access.key": "K", "secret.key": "S"}) == options


def test_encryption_and_requester_pays() -> None:
    assert as_options({"encryption.algorithm": "SSE-C", "encryption.key": "B64", "requester.pays.enabled": "true"}) == {
        "ssecustomersecretkey": "B64",
        "requestpayer": "true",
    }
    assert as_options({"access.key": "K"}) == {}  # half a pair is none


def test_files_of_configuration(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.hadoop.fs.s3a.endpoint https://commented\n\n"
        "spark.hadoop.fs.s3a.endpoint  https://from-spark\n"
        "spark.hadoop.fs.s3a.access.key=K\n"
        "spark.master local[2]\n"
        "spark.sql.session.timeZone America/New_York\n"
        "spark.sql.caseSensitive true\n"
    )
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.s3a.endpoint</name><value>https://from-hadoop</value></property>"
        "<property><name>fs.s3a.secret.key</name><value>S</value></property>"
        "<property><name>fs.s3a.session.token</name><value>${env.TOKEN}</value></property></configuration>"
    )
    found = from_files({"SPARK_CONF_DIR": str(tmp_path), "HADOOP_CONF_DIR": str(tmp_path)})
    assert found.by_bucket == {
        ALL_BUCKETS: {"endpointurl": "https://from-spark", "accesskeyid": "K", "secretaccesskey": "S"}
    }
    assert (found.time_zone, found.exact_case) == ("America/New_York", True)


def test_files_that_are_missing_or_broken_say_nothing(tmp_path: Path) -> None:
    assert from_files({}) == SessionSettings({})
    (tmp_path / "core-site.xml").write_text("<configuration>")
    assert from_files({"SPARK_CONF_DIR": str(tmp_path / "no"), "HADOOP_CONF_DIR": str(tmp_path)}) == SessionSettings({})


@each_of(
    ("settings", "parallelism", "slots"),
    [
        ({"spark.master": "local[2]"}, 2, 2),
        ({"spark.master": "local"}, 1, 1),
        ({"spark.master": "local-cluster[3,2,1024]"}, 2, 6),
        # No executor is there yet: the scheduler says 2.
        ({"spark.master": "yarn", "spark.executor.instances": "40", "spark.executor.cores": "4"}, 2, 160),
        ({"spark.master": "spark://m:7077", "spark.cores.max": "32", "spark.task.cpus": "2"}, 2, 16),
        ({"spark.master": "spark://m:7077", "spark.cores.max": "32"}, 100, 100),
        (
            {
                "spark.master": "k8s://m",
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "50",
                "spark.executor.instances": "2",
            },
            2,
            50,
        ),
        ({"spark.master": "spark://m:7077"}, 2, SLOTS_UNBOUND),
        ({"spark.master": "spark://m:7077"}, 999, 999),
        ({"spark.master": "yarn", "spark.executor.cores": "many"}, None, SLOTS_UNBOUND),
        ({}, None, None),
    ],
)
def test_slots_are_not_those_of_the_executors_that_came_first(
    settings: dict[str, str], parallelism: int | None, slots: int | None
) -> None:
    assert slots_of(settings, parallelism) == slots
