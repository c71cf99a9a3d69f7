"""What the verbs mean: a tree is a dictionary of names and bytes, and each verb is a pure function of it.

Every value that is written is another one. So what a verb may lose is a set of values: those that it replaces or
deletes. All others have to be somewhere after it, whatever has failed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aioprefetch.errors import (
    AlreadyExists,
    ConditionNotMatch,
    Error,
    InvalidArgument,
    IsADirectory,
    IsSameFile,
    NotADirectory,
    NotFound,
)

Tree = dict[str, bytes]
Kinds = tuple[type[Error], ...]


@dataclass(frozen=True)
class Step:
    """One call of a verb: its arguments by name."""

    verb: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.arguments[name]
        except KeyError:
            raise AttributeError(name) from None

    def __str__(self) -> str:
        return f"{self.verb}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


@dataclass(frozen=True)
class Outcome:
    """The tree after a verb, or the errors of which it raises one, and leaves the tree as it was.

    ``failures`` are names whose values the verb reports as not moved or copied: the others were.
    ``killed`` has the values that the verb may replace or delete, whether it ends well or fails.
    """

    tree: Tree
    errors: Kinds = ()
    killed: frozenset[bytes] = frozenset()


@dataclass(frozen=True)
class Meaning:
    """The meaning of verbs in a store. In one with ``directories`` a name is a file or a directory, never both."""

    directories: bool = False

    def of(self, tree: Tree, step: Step) -> Outcome:
        """The outcome of a step."""
        method: Callable[[Tree, Step], Outcome] = getattr(self, f"_{step.verb}")
        return method(tree, step)

    # --- one object ---------------------------------------------------------------------------------------------

    def _write(self, tree: Tree, step: Step) -> Outcome:
        refused = self._refused_target(tree, step.path)
        if refused:
            return Outcome(tree, refused)
        there = tree.get(step.path)
        if step.if_not_exists and there is not None:
            return Outcome(tree, (AlreadyExists,))
        if step.if_match == "other":
            return Outcome(tree, (ConditionNotMatch,))
        if step.if_match == "current" and there is None:
            return Outcome(tree, (ConditionNotMatch, NotFound))
        return Outcome({**tree, step.path: step.data}, killed=_killed(there))

    _upload = _writer = _write

    def _copy(self, tree: Tree, step: Step) -> Outcome:
        if step.source == step.target:
            return Outcome(tree, (IsSameFile, NotFound, IsADirectory, NotADirectory, ConditionNotMatch))
        if step.source not in tree:
            return Outcome(tree, (NotFound, IsADirectory, NotADirectory))
        refused = self._refused_target(tree, step.target)
        if refused:
            return Outcome(tree, refused)
        if step.if_match == "other":
            return Outcome(tree, (ConditionNotMatch,))
        there = tree.get(step.target)
        if step.if_not_exists and there is not None:
            return Outcome(tree, (AlreadyExists,))
        return Outcome({**tree, step.target: tree[step.source]}, killed=_killed(there))

    def _move(self, tree: Tree, step: Step) -> Outcome:
        copied = self._copy(tree, step)
        if copied.errors:
            return copied
        moved = {name: data for name, data in copied.tree.items() if name != step.source}
        return Outcome(moved, killed=copied.killed)

    def _delete(self, tree: Tree, step: Step) -> Outcome:
        there = tree.get(step.path)
        if self.directories and there is None and self._is_directory(tree, step.path):
            return Outcome(tree, (IsADirectory,))
        if step.if_match == "other":
            return Outcome(tree, (ConditionNotMatch, NotFound, IsADirectory, NotADirectory))
        if step.if_match == "current" and there is None:
            return Outcome(tree, (NotFound, ConditionNotMatch, IsADirectory, NotADirectory))
        return Outcome({name: data for name, data in tree.items() if name != step.path}, killed=_killed(there))

    def _refused_target(self, tree: Tree, path: str) -> Kinds:
        """The errors of a write to a path at which a directory is, or below a file."""
        if not self.directories:
            return ()
        if self._is_directory(tree, path):
            return (IsADirectory,)
        above = [path[:end] for end, letter in enumerate(path) if letter == "/"]
        return (NotADirectory, InvalidArgument, AlreadyExists) if any(name in tree for name in above) else ()

    def _is_directory(self, tree: Tree, path: str) -> bool:
        return any(name.startswith(f"{path}/") for name in tree)

    # --- many objects -------------------------------------------------------------------------------------------

    def _delete_many(self, tree: Tree, step: Step) -> Outcome:
        left = {name: data for name, data in tree.items() if name not in step.paths}
        if self.directories and any(self._is_directory(tree, path) for path in step.paths if path not in tree):
            return Outcome(left, (IsADirectory,), killed=frozenset(tree.values()) - {*left.values()})
        return Outcome(left, killed=frozenset(tree.values()) - {*left.values()})

    def _delete_all(self, tree: Tree, step: Step) -> Outcome:
        left = {name: data for name, data in tree.items() if not name.startswith(step.path)}
        return Outcome(left, killed=frozenset(tree.values()) - {*left.values()})

    def _copy_tree(self, tree: Tree, step: Step) -> Outcome:
        """A copy of a directory, all of it or what a glob matches, below another one."""
        source, target = step.source, step.target
        pattern = None if step.glob is None else _pattern(step.glob)
        chosen = {
            name: target + name[len(source) :]
            for name in tree
            if name.startswith(source) and (pattern is None or pattern.fullmatch(name[len(source) :]))
        }
        is_recursive = step.glob is None or "/" in step.glob or "**" in step.glob
        if source == target:
            return Outcome(tree, (IsSameFile, NotFound))
        if target.startswith(source) and is_recursive:
            return Outcome(tree, (InvalidArgument, NotFound))
        if source.startswith(target) and step.delete_extra:
            return Outcome(tree, (InvalidArgument, NotFound))
        if set(chosen.values()) & set(chosen):
            return Outcome(tree, (InvalidArgument,))
        if not chosen:
            return Outcome(tree, (NotFound, NotADirectory))
        refused = {name for name, path in chosen.items() if self._refused_target(tree, path)}
        if not step.overwrite:
            refused |= {name for name, path in chosen.items() if path in tree}
        done = {path: tree[name] for name, path in chosen.items() if name not in refused}
        after = {**tree, **done}
        killed = {tree[path] for path in done if path in tree}
        if refused:
            return Outcome(after, (Error,), frozenset(killed))
        if step.delete_extra:
            extra = {
                name
                for name in tree
                if name.startswith(target)
                and name not in done
                and (pattern is None or pattern.fullmatch(name[len(target) :]))
            }
            killed |= {tree[name] for name in extra}
            after = {name: data for name, data in after.items() if name not in extra}
        return Outcome(after, killed=frozenset(killed))

    def _move_tree(self, tree: Tree, step: Step) -> Outcome:
        whole = {"glob": None, "delete_extra": False, "overwrite": not step.if_not_exists}
        copied = self._copy_tree(tree, Step("copy_tree", {**step.arguments, **whole}))
        if copied.errors:
            return copied
        sources = {name for name in tree if name.startswith(step.source)}
        targets = {step.target + name[len(step.source) :] for name in sources}
        after = {name: data for name, data in copied.tree.items() if name not in sources - targets}
        return Outcome(after, killed=copied.killed)


def _killed(value: bytes | None) -> frozenset[bytes]:
    return frozenset() if value is None else frozenset({value})


def _pattern(glob: str) -> re.Pattern[str]:
    """A glob as an expression: ``*`` stays in a directory, ``**/`` crosses them."""
    text = fnmatch.translate(glob).replace(".*", "[^/]*") if "**" not in glob else None
    if text is None:
        assert glob == "**/*", glob
        text = ".*"
    return re.compile(text, re.DOTALL)


def check(before: Tree, after: Tree, outcome: Outcome, error: Error | None, step: Step) -> None:
    """Raise ``AssertionError`` unless a step that ended so may have made this tree of that one.

    A success has done all that the verb means. An error may leave a part of it done, but no value is lost that the verb
    was not to replace or delete, and each name has the value from before or that from after.
    """
    lost = set(before.values()) - set(after.values()) - outcome.killed
    assert not lost, f"{step} lost {sorted(lost)}: {before} -> {after} ({error!r})"
    if error is None:
        assert not outcome.errors, f"{step} ended well: {before} -> {after}, and one of {outcome.errors} is right"
        assert after == outcome.tree, f"{step}: {before} -> {after}, and {outcome.tree} is right"
        return
    for name in {*before, *after, *outcome.tree}:
        allowed = (before.get(name), outcome.tree.get(name))
        assert after.get(name) in allowed, f"{step}: {name!r} is {after.get(name)!r}, none of {allowed} ({error!r})"


def check_refusal(before: Tree, after: Tree, outcome: Outcome, error: Error | None, step: Step) -> None:
    """``check``, where nothing has failed but what the verb refuses: the error is one of those, and is raised."""
    check(before, after, outcome, error, step)
    if outcome.errors:
        assert isinstance(error, outcome.errors), f"{step}: {error!r}, and one of {outcome.errors} is right ({before})"
        assert after == outcome.tree, f"{step}: {before} -> {after}, and {outcome.tree} is right ({error!r})"
    else:
        assert error is None, f"{step}: {error!r} ({before})"
