"""The numbers in the README are those that the demo gives."""

import json
import re

import pytest

from aioprefetch.cli import main
from tests.benches.source_tree import ROOT

README = ROOT / "README.md"


def test_the_numbers_are_those_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """GETs, HEADs and bytes; the seconds are those of one machine."""
    assert main(["demo", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    for title, key in (("drops its buffer on seek", "naive"), ("aioprefetch", "aioprefetch")):
        shown = re.search(rf"^{title} +([\d,]+) +([\d,]+) +([\d,]+) +[\d.]+$", README.read_text("utf-8"), re.MULTILINE)
        assert shown is not None, title
        expected = [measured[key][name] for name in ("gets", "heads", "bytes")]
        assert [int(number.replace(",", "")) for number in shown.groups()] == expected
