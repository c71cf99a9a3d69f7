"""What jobs cost with each library, counted in a process of its own: s3fs leaves what warns when it is collected."""

import json
import subprocess
import sys
from collections.abc import Sequence

from tests.libraries.requests.cost import Cost, Costs
from tests.repository.source_tree import ROOT


def counted(section: str, names: Sequence[str]) -> Costs:
    """The costs of jobs of a section."""
    command = [sys.executable, "-m", "tests.libraries.requests", "--json", *names]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)[section]
    return {job: {library: Cost(**cost) for library, cost in by.items()} for job, by in found.items()}
