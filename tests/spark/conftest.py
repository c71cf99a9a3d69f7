"""One Spark session for all tests of a process, on two cores and this machine's loopback alone.

Without pyspark the tests here are skipped; without a Java they fail, and say how to get one (``make test`` sees to it).
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from tests.spark.installed_package import installed_package

__all__ = ["installed_package"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aioprefetch.testing import CountingS3Server

JVM_SECONDS_MAX = 30
# A bucket whose endpoint and keys are settings of S3A that the session was built with.
BUILT_IN_BUCKET = "of-the-builder"
BUILT_IN_SECRET = "SECRETOFTHEBUILDER"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What pyspark's own modules warn of is theirs; what we do to them is not."""
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.filterwarnings("ignore:::pyspark"))


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory where the session logs its events."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, event_log: Path, s3_server: "CountingS3Server"
) -> Iterator["SparkSession"]:
    """The session. Warnings of pyspark about what we installed beside it are not ours to fail on."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from aioprefetch.spark.java import use_java

    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    home = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("aioprefetch tests")
    built_in = f"spark.hadoop.fs.s3a.bucket.{BUILT_IN_BUCKET}"
    settings = {
        **SETTINGS,
        f"{built_in}.endpoint": s3_server.endpoint_url,
        f"{built_in}.access.key": "AKIDOFTHEBUILDER",
        f"{built_in}.secret.key": BUILT_IN_SECRET,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": event_log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.python.daemon.module": "tests.spark.preloaded_daemon",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(home / "warehouse"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.stop()
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()  # the end of its input is what the JVM ends by
            gateway.proc.wait(JVM_SECONDS_MAX)


@pytest.fixture
def directory(tmp_path: Path) -> Callable[[str], Path]:
    """A function that makes a directory of the test's own."""

    def make(name: str) -> Path:
        made = tmp_path / name
        made.mkdir(parents=True)
        return made

    return make
