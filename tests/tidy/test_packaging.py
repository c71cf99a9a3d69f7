"""What is published beside the wheel agrees with pyproject.toml: the recipe for conda, the citation, the groups."""

import re
import tomllib
from typing import Any

import yaml

from aioprefetch.testing.conformance.suite import checks
from tests.repository.source_tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
METADATA = PROJECT["project"]
# Extras that the package for conda leaves out: what they bring is for developers, or has a package of conda's own.
ON_PYPI_ALONE = {"java", "demo", "testing"}


def recipe() -> dict[str, Any]:
    """The recipe for conda, which is YAML before its expressions are evaluated too."""
    text = (ROOT / ".ci/recipe/recipe.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{\{.*?\}\}", "X", text))
    return found


def floors(requirements: list[str]) -> dict[str, str]:
    """The lowest version of each requirement, without markers and extras."""
    matches = [re.match(r"([\w.-]+)(?:\[.*?\])? ?>=([\d.]+)", requirement) for requirement in requirements]
    return {match[1].lower(): match[2] for match in matches if match}


def test_the_recipe_asks_for_the_same_versions() -> None:
    requirements = recipe()["requirements"]
    assert floors(requirements["run"]) == floors(METADATA["dependencies"])
    extras = METADATA["optional-dependencies"]
    optional = floors([one for name, extra in extras.items() if name not in ON_PYPI_ALONE for one in extra])
    constraints = {name.replace("_", "-"): lowest for name, lowest in floors(requirements["run_constraints"]).items()}
    assert constraints == optional
    assert floors(requirements["host"]) == floors(PROJECT["build-system"]["requires"])


def test_addresses_and_license_are_written_once_and_the_same() -> None:
    urls = METADATA["urls"]
    about = recipe()["about"]
    citation = yaml.safe_load((ROOT / "docs/CITATION.cff").read_text("utf-8"))
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert (about["homepage"], about["repository"], about["documentation"]) == (
        *(urls[name] for name in ("Homepage", "Source", "Documentation")),
    )
    assert (citation["repository-code"], citation["url"]) == (urls["Source"], urls["Documentation"])
    assert METADATA["license"] == about["license"] == citation["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in METADATA["authors"]]


def test_the_version_is_written_in_one_place() -> None:
    assert METADATA["dynamic"] == ["version", "readme"]
    assert PROJECT["tool"]["hatch"]["version"] == {"path": "aioprefetch/__init__.py"}


@checks("reliability:K14")
def test_a_package_has_the_same_lowest_version_wherever_it_is_named() -> None:
    extras = METADATA["optional-dependencies"]
    named = [*extras.items(), *((name, [x for x in group if isinstance(x, str)]) for name, group in groups().items())]
    lowest: dict[str, set[str]] = {}
    for _, requirements in named:
        for name, version in floors(requirements).items():
            lowest.setdefault(name, set()).add(version)
    assert {name: found for name, found in lowest.items() if len(found) > 1} == {}


def groups() -> dict[str, list[Any]]:
    """The groups of developers."""
    found: dict[str, list[Any]] = PROJECT["dependency-groups"]
    return found
