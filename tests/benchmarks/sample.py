"""One contestant of one job, in this process: ``python -m tests.benchmarks.sample JOB NAME TARGET`` prints JSON."""

import asyncio
import importlib
import json
import os
import sys
import traceback

from tests.benchmarks.job import Target
from tests.benchmarks.jobs import JOBS, YOURS


def main(job: str, name: str, target: str) -> int:
    """Run it; the status to exit with."""
    try:
        row = {**JOBS, YOURS.name: YOURS}[job]
        with asyncio.Runner(loop_factory=importlib.import_module(row.loop).new_event_loop) as runner:
            found = runner.run(row.contestants[name](Target(**json.loads(target))))
    except Exception as error:
        traceback.print_exc()
        # The last line is what the table shows.
        print(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", file=sys.stderr)
        return 1
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stderr.flush()
    # OpenDAL's runtime sometimes aborts when the interpreter ends; the numbers are out by then.
    os._exit(status)
