"""Trees and steps that Hypothesis draws: few names, so that they meet, and a value of its own for each write."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st

from tests.model.verbs.tree import Step, Tree

NAMES = st.sampled_from(
    ["a", "b", "a/a", "a/b", "b/a", "b/b", "a/a/a", "a/a/b", "a/b/a", "a/b/b", "b/a/b", "[a]", "[a]/b", "a b", "a/[b]"]
)
DIRECTORIES = st.sampled_from(["", "a/", "b/", "a/a/", "a/b/", "b/a/", "[a]/"])
NAMED = DIRECTORIES.filter(bool)
FLAGS = st.booleans()
IF_MATCH = st.sampled_from([None, None, None, "current", "other"])
GLOBS = st.sampled_from([None, None, None, "*", "**/*", "a*", "[ab]"])
VERBS = ("write", "writer", "upload", "copy", "move", "delete", "delete_many", "delete_all", "copy_tree", "move_tree")


@st.composite
def trees(draw: st.DrawFn, *, directories: bool) -> Tree:
    """A tree; with ``directories`` no name is a file and a directory."""
    tree: Tree = {}
    for number, name in enumerate(draw(st.lists(NAMES, max_size=7, unique=True))):
        if directories and any(one.startswith(f"{two}/") for one in tree for two in (name,)):
            continue
        if directories and any(name.startswith(f"{one}/") for one in tree):
            continue
        tree[name] = f"value {number}".encode()
    return tree


@st.composite
def steps(draw: st.DrawFn, *, verbs: tuple[str, ...] = VERBS) -> Step:
    """One step. Its value, if it writes one, is given when it runs."""
    verb = draw(st.sampled_from(verbs))
    arguments: dict[str, Any] = {}
    if verb in ("write", "writer", "upload"):
        arguments = {"path": draw(NAMES), "if_not_exists": draw(FLAGS), "if_match": None}
        if not arguments["if_not_exists"]:
            arguments["if_match"] = draw(IF_MATCH)
    elif verb in ("copy", "move"):
        arguments = {"source": draw(NAMES), "target": draw(NAMES)}
        arguments |= {"if_not_exists": draw(FLAGS), "if_match": draw(IF_MATCH)}
    elif verb == "delete":
        arguments = {"path": draw(NAMES), "if_match": draw(IF_MATCH)}
    elif verb == "delete_many":
        arguments = {"paths": tuple(draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)))}
    elif verb == "delete_all":
        arguments = {"path": draw(NAMED)}
    else:
        arguments = {"source": draw(DIRECTORIES if verb == "copy_tree" else NAMED), "target": draw(DIRECTORIES)}
        if verb == "copy_tree":
            arguments |= {"glob": draw(GLOBS), "overwrite": draw(FLAGS), "delete_extra": draw(FLAGS)}
        else:
            arguments |= {"if_not_exists": draw(FLAGS)}
    return Step(verb, arguments)


def valued(sequence: list[Step]) -> list[Step]:
    """The steps with a value for each write, other than all others."""
    numbers = itertools.count()
    return [
        Step(step.verb, {**step.arguments, "data": f"written {next(numbers)}".encode()})
        if step.verb in ("write", "writer", "upload")
        else step
        for step in sequence
    ]
