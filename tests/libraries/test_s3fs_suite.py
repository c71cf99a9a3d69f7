"""s3fs's own test file over our file system: what fails is what is pinned by its reason.

``AIOPREFETCH_S3FS_TESTS=/path/to/test_s3fs.py pytest tests/libraries/test_s3fs_suite.py``; s3fs's repository has it.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.repository.source_tree import ROOT

FILE = os.environ.get("AIOPREFETCH_S3FS_TESTS")
LEFT = tomllib.loads(Path(__file__).with_name("s3fs_left.toml").read_text("utf-8"))
# What s3fs's tests leave open is no fault of theirs, and the files of those that fail warn.
OPTIONS = ["-p", "tests.libraries.s3fs_suite", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]


@pytest.mark.skipif(not FILE, reason="AIOPREFETCH_S3FS_TESTS names no test file of s3fs")
@pytest.mark.timeout(1800)
def test_what_fails_of_its_tests_is_named_with_its_reason(tmp_path: Path) -> None:
    copied = tmp_path / "test_s3fs.py"
    copied.write_bytes(Path(str(FILE)).read_bytes())
    environment = os.environ | {"PYTHONPATH": str(ROOT), "AWS_DEFAULT_REGION": "us-east-1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--timeout=240", *OPTIONS, str(copied)]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    failed = re.findall(r"^FAILED \S*test_s3fs\.py::(\S+)", run.stdout, re.MULTILINE)
    assert re.search(r"\d+ passed", run.stdout), run.stdout[-3000:]
    assert sorted(failed) == sorted(name for names in LEFT.values() for name in names)
