"""The numbers on the page of the demo are those that it gives."""

import json
import re

import pytest

from aioprefetch.cli import main
from tests.repository.source_tree import ROOT

PAGE = ROOT / "docs" / "start" / "demo.md"


def test_the_numbers_are_those_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """GETs, HEADs and bytes; the seconds are those of one machine."""
    assert main(["demo", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    for title, key in (("drops its buffer on seek", "naive"), ("aioprefetch", "aioprefetch")):
        shown = re.search(rf"^{title} +([\d,]+) +([\d,]+) +([\d,]+) +[\d.]+$", PAGE.read_text("utf-8"), re.MULTILINE)
        assert shown is not None, title
        expected = [measured[key][name] for name in ("gets", "heads", "bytes")]
        assert [int(number.replace(",", "")) for number in shown.groups()] == expected
