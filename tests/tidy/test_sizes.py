"""The lines of each room, and those of the tests, only fall: `sizes.toml` has the limits, with reasons for rises."""

import re
import tomllib
from collections import Counter
from pathlib import Path

from tests.repository.source_tree import PACKAGE, ROOT, python_files

SIZES = Path(__file__).with_name("sizes.toml")
# A limit this far above its room is too high to hold anything.
SLACK_LINES = 150


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def measured() -> dict[str, dict[str, int]]:
    """The lines of Python of each room of the package, a module at its top being one, and of all tests."""
    rooms: Counter[str] = Counter()
    for path in python_files(PACKAGE):
        rooms[path.relative_to(PACKAGE).parts[0].removesuffix(".py")] += lines_of(path)
    return {
        "product": dict(sorted(rooms.items())),
        "tests": {"tests": sum(map(lines_of, python_files(ROOT / "tests")))},
    }


def limits() -> dict[str, dict[str, int]]:
    return tomllib.loads(SIZES.read_text("utf-8"))


def above_limits() -> dict[str, int]:
    """By how many lines each room is larger than its limit, or smaller."""
    sizes, allowed = measured(), limits()
    return {
        room: sizes[part].get(room, 0) - allowed[part].get(room, 0)
        for part in sizes
        for room in sorted(sizes[part].keys() | allowed[part].keys())
    }


def test_no_room_is_larger_than_its_limit() -> None:
    """Make it smaller, or raise the limit in sizes.toml with the reason beside it."""
    assert {room: lines for room, lines in above_limits().items() if lines > 0} == {}


def test_no_limit_stands_far_above_its_room() -> None:
    """`python -m tests.tidy.test_sizes` lowers them."""
    assert {room: lines for room, lines in above_limits().items() if lines < -SLACK_LINES} == {}


def lower() -> None:
    """Lower the limits that are above their rooms, drop those of rooms that are gone, and leave the other lines."""
    text = SIZES.read_text("utf-8")
    sizes = measured()
    for part, allowed in limits().items():
        for room, limit in allowed.items():
            size = sizes[part].get(room, 0)
            if size < limit:
                text = re.sub(rf"(?m)^{room} = {limit}(.*\n)", rf"{room} = {size}\1" if size else "", text)
    SIZES.write_text(text, "utf-8")


if __name__ == "__main__":
    lower()
