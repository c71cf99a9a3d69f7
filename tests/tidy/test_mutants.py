"""The lists of mutants name code that is there, so that a run of some of them says nothing about the others."""

from collections import Counter
from pathlib import Path

from tests.mutants import read_lists
from tests.repository.source_tree import ROOT


def test_each_text_stands_once_in_its_module() -> None:
    lost = {}
    for mutant in read_lists():
        path = ROOT / mutant.module
        found = path.read_text("utf-8").count(mutant.before) if path.is_file() else 0
        if found != 1:
            lost[mutant.name] = f"{found} times in {mutant.module}"
    assert lost == {}


def test_each_has_a_name_and_tests_of_its_own() -> None:
    mutants = read_lists()
    assert [name for name, count in Counter(one.name for one in mutants).items() if count > 1] == []
    files = {test.partition("::")[0] for one in mutants for test in one.tests}
    assert sorted(name for name in files if not Path(ROOT / name).exists()) == []
    assert [one.name for one in mutants if not (one.tests or one.lives)] == []
