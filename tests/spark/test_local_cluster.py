"""The tools for UDFs from an installed wheel, on two executors, with functions of ``__main__`` and reused workers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.spark.java import use_java
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.conformance.suite import checks

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("local_cluster_job.py")
JOB_SECONDS_MAX = 300
# The executors inherit these by their environment, as they would from a machine's.
VARIABLES = {
    "JOB_KEY_ID": "AKIAOFTHEJOB",
    "JOB_SECRET": "secret-of-the-job",
    "AWS_ACCESS_KEY_ID": "AKIAOFTHECHAIN",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-chain",
}
PYTHON_MIB = 3072
LITERALS = {"literal_key_id": "AKIALITERAL", "literal_secret": "literal-do-not-tell"}


def run_job(config: dict[str, Any], directory: Path, package: Path) -> dict[str, Any]:
    """Run the job as a program of its own, and read what it wrote."""
    use_java()
    output = directory / "seen.json"
    environment = {**os.environ, **VARIABLES, "PYTHONPATH": str(package), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(JOB), json.dumps(config | {"output": str(output)})],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=JOB_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    seen: dict[str, Any] = json.loads(output.read_text())
    return seen


def check_reuse(seen: dict[str, Any], gets: int) -> None:
    """Each worker has one pool for all its tasks, and reads the bytes once."""
    pools: dict[int, int] = {}
    for row in seen["first"] + seen["second"]:
        assert row["data"] == "defg"
        assert row["requests"] == 1
        assert row["visits"] == 1, "a function of __main__ has fresh globals in each task"
        assert pools.setdefault(row["pid"], row["pool"]) == row["pool"]
    again = {row["pid"] for row in seen["first"]} & {row["pid"] for row in seen["second"]}
    assert again, "no worker was used again"
    assert gets == len(pools) + len(seen["later"]) + len(seen["literals"])
    for row in seen["later"]:
        assert row["data"] == "fghi"
        assert pools.get(row["pid"], row["pool"]) == row["pool"], "asynchronous functions share the operator"
    assert {row["data"] for row in seen["literals"]} == {"hijk"}


@checks("reliability:P18")
def test_reused_workers_of_a_cluster_share_one_warm_operator_and_see_no_secret(
    tmp_path: Path, s3_server: CountingS3Server, random_name: Callable[[], str], installed_package: Path
) -> None:
    package = installed_package
    bucket = random_name()
    s3_server.create_bucket(bucket)
    url, events = f"s3://{bucket}", tmp_path / "events"
    events.mkdir()
    keys: dict[str, Any] = {"access_key_id": "testing", "secret_access_key": "testing"}
    store = Operator.from_uri(url, endpoint_url=s3_server.endpoint_url, region="us-east-1", **keys)
    with BlockingOperator(store) as blocking:
        blocking.write("abc", b"abcdefghijklmnopqrstuvwxyz")
    s3_server.reset()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "600m",
        "spark.executor.pyspark.memory": f"{PYTHON_MIB}m",
        "spark.executorEnv.PYTHONPATH": str(package),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    config = {"url": url, "endpoint_url": s3_server.endpoint_url, "spark": settings, **LITERALS}
    seen = run_job(config, tmp_path, package)

    rows = [row for job in ("first", "second", "later", "literals") for row in seen[job]]
    assert all(row["package"].startswith(str(package)) for row in rows)
    assert all(PYTHON_MIB / 4 <= row["budget"] / (1 << 20) <= PYTHON_MIB / 2 for row in rows)
    check_reuse(seen, sum(request.method == "GET" and request.path.endswith("/abc") for request in s3_server.requests))
    logs = [path.read_text("utf-8") for path in events.iterdir()]
    assert any("SparkListenerApplicationEnd" in log for log in logs)
    for text in (*logs, *seen["pickles"], *seen["plans"]):
        for secret in (*VARIABLES.values(), *LITERALS.values()):
            assert secret not in text
