# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[cli]"]
# ///
"""The command line from a script: what programs read is JSON, and the exit code says whether all went well."""

import json
import subprocess
import sys
from pathlib import Path

import aioprefetch as ap


def run(*arguments: object) -> tuple[int, str]:
    """Exit code and output of a command."""
    command = [sys.executable, "-m", ap.__name__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def main() -> None:
    """List, read, copy and remove files; a bucket's URL in the place of each path does the same there."""
    source = Path.cwd() / "logs"
    for day in (1, 2, 3):
        path = source / f"2026-01-0{day}" / "log.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"line one of day {day}\nline two\n")

    _, listing = run("ls", "--json", f"{source}/**/*.txt")
    print("objects:", [json.loads(line)["path"] for line in listing.splitlines()])
    print("first bytes:", run("cat", "--range", "0:8", source / "2026-01-01" / "log.txt")[1])
    for _ in range(2):
        code, report = run("sync", "--json", source, Path.cwd() / "copy")
        print("copied:", json.loads(report)["copied"], "exit code:", code)
    code, _ = run("ls", f"{source}/*.csv")
    print("nothing matched:", code)


if __name__ == "__main__":
    main()
