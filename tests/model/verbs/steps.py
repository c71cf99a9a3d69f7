"""Trees and steps that Hypothesis draws: few names, so that they meet, and a value of its own for each write."""

import itertools
from collections.abc import Collection, Mapping
from typing import Any

from hypothesis import strategies as st

from tests.model.verbs.tree import Step, Tree

_NAMES = ("a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/a/b", "a/b/a", "a/b/b", "[a]", "[a]/b", "a b")
# What no verb of ours writes: objects whose names end with a slash, markers, and names with dots.
SLASHED = ("a/", "b/", "a/b/", "[a]/", "a/a/")
PLANTED = (*SLASHED, "a/../b", "b/./a")
NAMES = st.sampled_from([*_NAMES, "a/[b]"])
DIRECTORIES = st.sampled_from(["", "a/", "a/", "b/", "a/a/", "a/b/", "[a]/"])
NAMED = DIRECTORIES.filter(bool)
FLAGS = st.booleans()
IF_MATCH = st.sampled_from([None, None, None, "current", "other"])
IF_NONE_MATCH = st.sampled_from(["*", "current", "other"])
GLOBS = st.sampled_from([None, None, None, "*", "**/*", "a*", "[ab]"])
PATTERNS = st.sampled_from(["[a]", "[ab]", "a/[b]", "a*", "a/*", "a", "a b", "b/?"])
DELETE_MAX = st.sampled_from([None, None, 0, 1, 0.5, 1.0])

WRITES = ("write", "writer", "upload", "append", "upload_into")
ONE = ("copy", "move", "delete", "unlink", "read", "download")
MANY = ("delete_many", "delete_all", "copy_tree", "move_tree", "create_dir")
NAMED_VERBS = ("copy_named", "delete_named")
VERBS = (*WRITES, *ONE, *MANY, *NAMED_VERBS)
# The flags that a door may not have, as they are without them.
DEFAULTS: dict[str, Any] = {
    "if_not_exists": False,
    "if_match": None,
    "if_none_match": None,
    "glob": None,
    "overwrite": True,
    "delete_extra": False,
    "delete_max": None,
    "literal": False,
    "is_described": False,
    "missing_ok": False,
}
ALL_VERBS: Mapping[str, Collection[str]] = dict.fromkeys(VERBS, DEFAULTS)


@st.composite
def trees(draw: st.DrawFn, *, directories: bool, planted: Collection[str]) -> Tree:
    """A tree; with ``directories`` no name is a file and a directory. Some names are of those that are ``planted``."""
    tree: Tree = {}
    names = st.one_of(NAMES, NAMES, NAMES, st.sampled_from([*planted])) if planted else NAMES
    least, most = draw(st.sampled_from([(0, 2), (3, 8)]))
    for number, name in enumerate(draw(st.lists(names, unique=True, min_size=least, max_size=most))):
        if directories and any(_is_below(one, name) or _is_below(name, one) for one in tree):
            continue
        is_marker = name.endswith("/") and draw(FLAGS)
        tree[name] = b"" if is_marker or not number else f"value {number}".encode()  # One is empty.
    return tree


def _is_below(name: str, other: str) -> bool:
    """Whether a name makes another one, which is that of an object, the name of a directory."""
    return name.startswith(f"{other}/") and not other.endswith("/")


def _conditional(draw: st.DrawFn) -> dict[str, Any]:
    plain = {name: DEFAULTS[name] for name in ("if_not_exists", "if_match", "if_none_match")}
    name, values = draw(
        st.sampled_from([("if_not_exists", st.just(True)), ("if_match", IF_MATCH), ("if_none_match", IF_NONE_MATCH)])
    )
    return {**plain, name: draw(values)}


Names = st.SearchStrategy[str]


def _of_one(draw: st.DrawFn, verb: str, names: Names) -> dict[str, Any]:
    """The arguments of a verb of one object, which often has one of the names."""
    if verb == "append":
        return {"path": draw(names)}
    if verb == "upload_into":
        return {"path": draw(NAMED), "name": draw(st.sampled_from(["a", "b", "[a]"])), **_conditional(draw)}
    if verb in WRITES:
        return {"path": draw(names), **_conditional(draw)}
    if verb in ("copy", "move"):
        arguments: dict[str, Any] = {"source": draw(names), "target": draw(NAMES)}
        return {**arguments, "if_not_exists": draw(FLAGS), "if_match": draw(IF_MATCH)}
    if verb == "delete":
        return {"path": draw(names), "if_match": draw(IF_MATCH)}
    return {"path": draw(names), **({"missing_ok": draw(FLAGS)} if verb == "unlink" else {})}


def _two_directories(draw: st.DrawFn, sources: Names) -> dict[str, Any]:
    """A directory, and another one to copy it to: often that above it, where names meet."""
    source = draw(sources)
    above = source[: source.rstrip("/").rfind("/") + 1]
    return {"source": source, "target": draw(st.one_of(DIRECTORIES, st.just(above), st.just(above)))}


def _of_named(draw: st.DrawFn, verb: str, tree: Tree) -> dict[str, Any]:
    """The arguments of a verb whose name may be a pattern. It is often one that is there, and matches others too."""
    there = [name for name in tree if "[" in name and not name.endswith("/")]
    name = draw(st.one_of(PATTERNS, st.sampled_from(there)) if there else PATTERNS)
    if verb == "delete_named":
        return {"path": name, "literal": draw(FLAGS)}
    target = draw(st.sampled_from(["b", "a/a", "c"]))
    flags = {name: draw(FLAGS) for name in ("literal", "overwrite", "is_described")}
    return {"source": name, "target": target, **flags}


def _of_many(draw: st.DrawFn, verb: str, names: Names) -> dict[str, Any]:
    """The arguments of a verb of many objects."""
    arguments: dict[str, Any]
    if verb == "delete_many":
        return {"paths": tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True)))}
    if verb == "copy_tree":
        arguments = {**_two_directories(draw, DIRECTORIES), "glob": draw(GLOBS)}
        arguments |= {name: draw(FLAGS) for name in ("overwrite", "delete_extra", "is_described")}
        return {**arguments, "delete_max": draw(DELETE_MAX) if arguments["delete_extra"] else None}
    if verb == "move_tree":
        return {**_two_directories(draw, NAMED), "if_not_exists": draw(FLAGS)}
    return {"path": draw(NAMED)}


@st.composite
def steps(draw: st.DrawFn, verbs: Mapping[str, Collection[str]], tree: Tree) -> Step:
    """One step of a door, which has verbs with some flags. Its value, if it writes one, is given when it runs."""
    there = [name for name in tree if not (name.endswith("/") or "." in name)]
    names = st.one_of(st.sampled_from(there), st.sampled_from(there), NAMES) if there else NAMES
    often = [verb for verb in verbs if verb.endswith(("_tree", "_many", "_named"))]  # They have most ways to fail.
    verb = draw(st.sampled_from([*verbs, *often, *often]))
    if verb in NAMED_VERBS:
        arguments = _of_named(draw, verb, tree)
    else:
        arguments = (_of_one if verb in (*WRITES, *ONE) else _of_many)(draw, verb, names)
    plain = {name: DEFAULTS[name] for name in arguments if name in DEFAULTS and name not in verbs[verb]}
    return Step(verb, arguments | plain)


@st.composite
def cases(
    draw: st.DrawFn,
    verbs: Mapping[str, Collection[str]],
    *,
    directories: bool = False,
    planted: Collection[str] = PLANTED,
    steps_max: int = 4,
) -> tuple[Tree, list[Step]]:
    """A tree, and steps of a door that it has."""
    tree = draw(trees(directories=directories, planted=planted))
    return tree, valued(draw(st.lists(steps(verbs, tree), min_size=1, max_size=steps_max)))


def valued(sequence: list[Step]) -> list[Step]:
    """The steps with a value for each write, other than all others."""
    numbers = itertools.count()
    return [
        Step(step.verb, {**step.arguments, "data": f"written {next(numbers)}".encode()})
        if step.verb in WRITES
        else step
        for step in sequence
    ]
