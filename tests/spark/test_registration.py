"""``format("aioprefetch")`` without ``register``: found in the installed wheel, with settings of S3A from files."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.sql import SparkSession

from aioprefetch.spark import AioPrefetchDataSource, register
from aioprefetch.spark.data_source import _registered
from aioprefetch.spark.java import use_java
from aioprefetch.testing import CountingS3Server
from tests.spark.conftest import SETTINGS
from tests.spark.files import records, write_jsonl

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("registration_job.py")
JOB_SECONDS_MAX = 300


# A format of another package: a file, and a line in the entry points of its distribution.
FORMAT = """
import pyarrow as pa
from aioprefetch.source.formats import FoundBatch, RecordFormat, read_content, register_format


class ShoutFormat(RecordFormat):
    name = "shout"

    async def sample(self, operator, file, options, read):
        return pa.schema([("id", pa.int64())])

    async def read(self, operator, item, want):
        numbers = (await read_content(operator, item.file, want.read.open_file)).decode().split("!")
        yield FoundBatch(pa.RecordBatch.from_pydict({"id": [int(number) for number in numbers if number]}))


register_format(ShoutFormat(), ".shout")
"""


def install_format(directory: Path) -> None:
    """Install a distribution with a format of files into a directory."""
    information = directory / "shout_format-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shout-format\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[aioprefetch.formats]\nshout = shout_format\n")
    (directory / "shout_format.py").write_text(FORMAT)


def test_the_installed_wheel_and_a_format_beside_it_are_found_without_a_call(
    tmp_path: Path, s3_server: CountingS3Server, random_name: Callable[[], str], installed_package: Path
) -> None:
    package, bucket = installed_package, random_name()
    install_format(tmp_path / "formats")
    source, home = tmp_path / "source", tmp_path / "home"
    home.mkdir()
    write_jsonl(source / "a.jsonl", records(0, 3))
    shout = tmp_path / "ids.shout"
    shout.write_text("0!1!2!")
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
    client = boto3.client("s3", endpoint_url=s3_server.endpoint_url, region_name="us-east-1", **keys)
    client.create_bucket(Bucket=bucket)
    client.upload_file(str(source / "a.jsonl"), bucket, "landing/a.jsonl")
    client.close()
    (home / "spark-defaults.conf").write_text(
        f"spark.hadoop.fs.s3a.endpoint {s3_server.endpoint_url}\n"
        "spark.hadoop.fs.s3a.access.key AKIDFILE\nspark.hadoop.fs.s3a.secret.key SECRETFILE\n"
    )
    use_java()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{package}:{tmp_path / 'formats'}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(home),
    }
    done = subprocess.run(
        [
            sys.executable,
            str(JOB),
            json.dumps(SETTINGS),
            str(source),
            f"s3a://{bucket}/landing",
            str(tmp_path / "ids.shout"),
        ],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["rows"] == [[[0], [1], [2]]] * 3
    assert seen["module"] == str(package / "pyspark_aioprefetch.py")
    assert seen["package"].startswith(str(package))
    assert "SECRETFILE" not in done.stdout + done.stderr


def test_registering_again_counts_only_when_settings_changed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[type[AioPrefetchDataSource]] = []
    monkeypatch.setattr(type(spark.dataSource), "register", lambda _, source: calls.append(source))
    monkeypatch.delitem(_registered, spark, raising=False)
    register(spark)
    register(spark)
    spark.conf.set("spark.hadoop.fs.s3a.endpoint", "https://elsewhere.example")
    try:
        register(spark)
    finally:
        spark.conf.unset("spark.hadoop.fs.s3a.endpoint")
        monkeypatch.delitem(_registered, spark)
    first, second = calls
    assert issubclass(first, AioPrefetchDataSource)
    assert first.name() == second.name() == "aioprefetch"
    assert first.session is not None
    assert second.session is not None
    assert second.session.options("any")["endpointurl"] == "https://elsewhere.example"
    assert first.session.slots == 2


def test_workers_of_a_local_session_are_of_this_python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another is chosen: the ``python3`` of ``PATH`` has other packages than a virtual environment."""
    context: Any = spark.sparkContext
    for chosen, used in (("/chosen/python", "python3"), (None, sys.executable)):
        monkeypatch.setattr(context, "pythonExec", "python3")
        if chosen is None:
            monkeypatch.delenv("PYSPARK_PYTHON")
        else:
            monkeypatch.setenv("PYSPARK_PYTHON", chosen)
        register(spark)
        assert (context.pythonExec, os.environ["PYSPARK_PYTHON"]) == (used, chosen or sys.executable)
