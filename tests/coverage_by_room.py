"""The coverage of each room of the package, of what `make coverage` wrote, lowest first.

python -m tests.coverage_by_room build/coverage.json
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

KEYS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def rooms_of(report: Path) -> dict[str, dict[str, int]]:
    """The sums of each room: a folder of the package, or a module at its top."""
    rooms: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(KEYS, 0))
    for name, measured in json.loads(report.read_text("utf-8"))["files"].items():
        room = rooms[name.split("/")[1].removesuffix(".py")]
        for key in KEYS:
            room[key] += measured["summary"][key]
    return rooms


def percent(covered: int, of: int) -> float:
    return 100 * covered / of if of else 100.0


def main(report: str) -> None:
    rows = [
        (
            percent(sums["covered_branches"], sums["num_branches"]),
            percent(sums["covered_lines"], sums["num_statements"]),
            room,
        )
        for room, sums in rooms_of(Path(report)).items()
    ]
    sys.stdout.write("room            branches   lines\n")
    for branches, lines, room in sorted(rows):
        sys.stdout.write(f"{room:<16}{branches:7.1f} %{lines:7.1f} %\n")


if __name__ == "__main__":
    main(sys.argv[1])
