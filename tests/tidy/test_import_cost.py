"""`import aioprefetch` is cheap: what belongs to an extra loads on first use."""

import subprocess
import sys

from tests.benches.source_tree import ROOT

FORBIDDEN = (
    *("aiobotocore", "aiohappyeyeballs", "aiohttp", "botocore", "fsspec", "httptools", "numpy", "pyarrow", "pyspark"),
    "pytest",
)
PROGRAM = f"import sys; import aioprefetch; print([name for name in {FORBIDDEN!r} if name in sys.modules])"


def test_importing_the_package_loads_no_optional_dependency() -> None:
    """Run in a fresh interpreter, since this one has loaded everything."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
