"""What the verbs mean: a tree is a dictionary of names and bytes, and each verb is a pure function of it.

Every value that is written is another one. So what a verb may lose is a set of values: those that it replaces or
deletes. All others have to be somewhere after it, whatever has failed.
"""

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aioprefetch.errors import (
    AlreadyExists,
    ConditionNotMatch,
    Error,
    InvalidArgument,
    InvalidPath,
    IsADirectory,
    IsSameFile,
    NotADirectory,
    NotFound,
    Unsupported,
)

Tree = dict[str, bytes]
_ALL_OF_IT: Mapping[str, Any] = {"glob": None, "delete_extra": False, "delete_max": None}
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

    ``killed`` has the values that the verb may replace or delete, whether it ends well or fails. ``value`` is what it
    returns. With ``may_do`` it may end well where there is an error. After a success no marker is left below
    ``emptied``. ``copied`` are the names whose values were copied, where others were refused.
    """

    tree: Tree
    errors: Kinds = ()
    killed: frozenset[bytes] = frozenset()
    value: bytes | None = None
    may_do: bool = False
    emptied: str = ""
    copied: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Meaning:
    """The meaning of verbs in a store.

    In one with ``directories`` a name is a file or a directory, never both. One that is not ``is_strict`` may fail, or
    say so and do nothing: no value is lost. One without ``conditions`` looks at none of them. One without
    ``none_match`` refuses a write that is not to replace an object with some ETag.
    """

    directories: bool = False
    is_strict: bool = True
    conditions: bool = True
    none_match: bool = True

    def of(self, tree: Tree, step: Step) -> Outcome:
        """The outcome of a step."""
        method: Callable[[Tree, Step], Outcome] = getattr(self, f"_{step.verb}")
        return method(tree, step)

    # --- one object ---------------------------------------------------------------------------------------------

    def _write(self, tree: Tree, step: Step) -> Outcome:
        refused, unwanted = self._refused_target(tree, step.path), step.arguments.get("if_none_match")
        if unwanted in ("current", "other") and not self.none_match:
            return Outcome(tree, (*refused, Unsupported))
        if refused:
            return Outcome(tree, refused)
        there = tree.get(step.path)
        if (step.if_not_exists or unwanted == "*") and there is not None:
            return Outcome(tree, (AlreadyExists,))
        if unwanted == "current" and there is not None:
            return Outcome(tree, (ConditionNotMatch,))
        if step.if_match == "other":
            return Outcome(tree, (ConditionNotMatch,))
        if step.if_match == "current" and there is None:
            return Outcome(tree, (ConditionNotMatch, NotFound))
        return Outcome({**tree, step.path: step.data}, killed=_killed(there))

    _upload = _writer = _write

    def _append(self, tree: Tree, step: Step) -> Outcome:
        whole = {**step.arguments, "data": tree.get(step.path, b"") + step.data, "if_not_exists": False}
        return self._write(tree, Step("write", {**whole, "if_match": None}))

    def _upload_into(self, tree: Tree, step: Step) -> Outcome:
        return self._write(tree, Step("write", {**step.arguments, "path": step.path + step.name}))

    def _read(self, tree: Tree, step: Step) -> Outcome:
        data = tree.get(step.path)
        if data is None or (not data and step.path.endswith("/")):
            return Outcome(tree, (NotFound, IsADirectory, NotADirectory))
        return Outcome(tree, value=data)

    _download = _read

    def _create_dir(self, tree: Tree, step: Step) -> Outcome:
        """Make a directory. Its marker, if it gets one, counts for nothing."""
        above = [step.path[:end] for end, letter in enumerate(step.path) if letter == "/"]
        if any(name in tree for name in above):
            return Outcome(tree, (AlreadyExists, NotADirectory, IsADirectory), may_do=not self.directories)
        return Outcome(tree)

    def _copy(self, tree: Tree, step: Step) -> Outcome:
        if step.source == step.target:
            return Outcome(tree, (IsSameFile, NotFound, IsADirectory, NotADirectory, ConditionNotMatch))
        if step.source not in tree:
            return Outcome(tree, (NotFound, IsADirectory, NotADirectory))
        refused = self._refused_target(tree, step.target)
        if refused:
            return Outcome(tree, (*refused, ConditionNotMatch) if step.if_match == "other" else refused)
        if step.if_match == "other":
            return Outcome(tree, (ConditionNotMatch,))
        there = tree.get(step.target)
        if step.if_not_exists and there is not None:
            return Outcome(tree, (AlreadyExists,))
        return Outcome({**tree, step.target: tree[step.source]}, killed=_killed(there))

    def _move(self, tree: Tree, step: Step) -> Outcome:
        copied, left = self._copy(tree, step), {name: data for name, data in tree.items() if name != step.source}
        if copied.errors == (AlreadyExists,) and tree[step.source] == tree[step.target]:
            return replace(copied, tree=left, may_do=True)  # As a move that did not come to its end has left them.
        if copied.errors:
            return copied
        moved = {name: data for name, data in copied.tree.items() if name != step.source}
        return Outcome(moved, killed=copied.killed)

    def _delete(self, tree: Tree, step: Step) -> Outcome:
        there = tree.get(step.path)
        if self.directories and there is None and self._is_directory(tree, step.path):
            return Outcome(tree, (IsADirectory, ConditionNotMatch) if step.if_match else (IsADirectory,))
        if step.if_match == "other":
            return Outcome(tree, (ConditionNotMatch, NotFound, IsADirectory, NotADirectory))
        if step.if_match == "current" and there is None:
            return Outcome(tree, (NotFound, ConditionNotMatch, IsADirectory, NotADirectory))
        return Outcome({name: data for name, data in tree.items() if name != step.path}, killed=_killed(there))

    def _unlink(self, tree: Tree, step: Step) -> Outcome:
        if step.path not in tree and not step.missing_ok:
            return Outcome(tree, (NotFound, IsADirectory, NotADirectory))
        return self._delete(tree, Step("delete", {"path": step.path, "if_match": None}))

    def _refused_target(self, tree: Tree, path: str) -> Kinds:
        """The errors of a write to a path at which a directory is, or below a file, or that no verb takes."""
        if has_dots(path):
            return (InvalidPath,)
        if not self.directories:
            return ()
        if self._is_directory(tree, path):
            return (IsADirectory,)
        above = [path[:end] for end, letter in enumerate(path) if letter == "/"]
        return (NotADirectory, InvalidArgument, AlreadyExists) if any(name in tree for name in above) else ()

    def _is_directory(self, tree: Tree, path: str) -> bool:
        return any(name.startswith(f"{path}/") for name in tree)

    # --- names that may be patterns -----------------------------------------------------------------------------

    def _named(self, tree: Tree, step: Step, name: str) -> list[str] | None:
        """The objects that a name means: that of this very name, or those that it matches as a pattern.

        ``None`` for a name that is there without being an object.
        """
        if name in tree:
            return [name]
        if self._is_directory(tree, name):
            return None
        return [] if step.literal else [one for one in without_markers(tree) if pattern_of(name).fullmatch(one)]

    def _delete_named(self, tree: Tree, step: Step) -> Outcome:
        found = self._named(tree, step, step.path)
        if not found:
            return Outcome(tree, (NotFound, IsADirectory, NotADirectory))
        left = {name: data for name, data in tree.items() if name not in found}
        return Outcome(left, killed=frozenset(tree.values()) - {*without_markers(left).values()})

    def _copy_named(self, tree: Tree, step: Step) -> Outcome:
        """A copy of one object to a path, or of what a pattern matches below a directory."""
        found = self._named(tree, step, step.source)
        if found is None and self.directories:
            into = {"source": f"{step.source}/", "target": f"{step.target}/", "overwrite": step.overwrite}
            return self._copy_tree(tree, Step("copy_tree", {**into, **_ALL_OF_IT}))
        if not found:
            return Outcome(tree, (NotFound, IsADirectory, NotADirectory, IsSameFile, InvalidArgument))
        overwrites = {"overwrite": step.overwrite, **_ALL_OF_IT}
        if found != [step.source]:
            wildcard = re.search(r"[*?]|\[(?![^!/]\])", step.source)  # A set of one character is the character itself.
            literal = step.source[: wildcard.start() if wildcard else None]
            base = re.sub(r"\[(.)\]", r"\1", literal).rpartition("/")
            source, target = base[0] + base[1], f"{step.target}/"
            if source == target:
                return Outcome(tree, (IsSameFile, InvalidArgument))
            chosen = {name: target + name[len(source) :] for name in found}
            return self._copied(tree, source, target, chosen, overwrites)
        source, target = step.source, step.target
        if target == source:
            return Outcome(tree, (IsSameFile,))
        return self._copied(tree, source, target, {source: target}, overwrites, is_single=True)

    # --- many objects -------------------------------------------------------------------------------------------

    def _delete_many(self, tree: Tree, step: Step) -> Outcome:
        left = {name: data for name, data in tree.items() if name not in step.paths}
        if self.directories and any(self._is_directory(tree, path) for path in step.paths if path not in tree):
            return Outcome(left, (IsADirectory,), killed=frozenset(tree.values()) - {*without_markers(left).values()})
        return Outcome(left, killed=frozenset(tree.values()) - {*without_markers(left).values()})

    def _delete_all(self, tree: Tree, step: Step) -> Outcome:
        left = {name: data for name, data in tree.items() if not name.startswith(step.path)}
        return Outcome(left, killed=frozenset(tree.values()) - {*without_markers(left).values()}, emptied=step.path)

    def _copy_tree(self, tree: Tree, step: Step) -> Outcome:
        """A copy of a directory, all of it or what a glob matches, below another one."""
        source, target = step.source, step.target
        pattern = None if step.glob is None else pattern_of(step.glob)
        chosen = {
            name: target + name[len(source) :]
            for name, data in tree.items()
            if name.startswith(source) and (pattern is None or pattern.fullmatch(name[len(source) :]))
            if data or not name.endswith("/")
        }
        if source == target:
            return Outcome(tree, (IsSameFile, NotFound))
        is_recursive = step.glob is None or "/" in step.glob or "**" in step.glob
        if target.startswith(source) and is_recursive:
            return Outcome(tree, (InvalidArgument, NotFound))
        if source.startswith(target) and step.delete_extra:
            return Outcome(tree, (InvalidArgument, NotFound))
        return self._copied(tree, source, target, chosen, step.arguments)

    def _copied(
        self,
        tree: Tree,
        source: str,
        target: str,
        chosen: Mapping[str, str],
        flags: Mapping[str, Any],
        *,
        is_single: bool = False,
    ) -> Outcome:
        """The tree after the copies of ``chosen``, names and their targets, and the deletion of what is extra."""
        if set(chosen.values()) & set(chosen) and not is_single:
            return Outcome(tree, (InvalidArgument,))
        if not chosen:  # A marker makes a directory that is empty.
            return Outcome(tree, (NotFound, NotADirectory), may_do=self._is_directory(tree, source.rstrip("/")))
        refused = {name for name, path in chosen.items() if has_dots(name) or self._refused_target(tree, path)}
        refused |= {name for name, path in chosen.items() if not path}
        if not flags["overwrite"]:
            refused |= {name for name, path in chosen.items() if path in tree}
        done = {path: tree[name] for name, path in chosen.items() if name not in refused}
        after = {**tree, **done}
        killed = {tree[path] for path in done if path in tree}
        if refused:
            return Outcome(after, (Error,), frozenset(killed), copied=frozenset(chosen.keys() - refused))
        if flags["delete_extra"]:
            pattern = None if flags["glob"] is None else pattern_of(flags["glob"])
            counted = {
                name
                for name, data in tree.items()
                if name.startswith(target)
                and (pattern is None or pattern.fullmatch(name[len(target) :]))
                and (data or not name.endswith("/"))
            }
            extra = counted - {*done}
            if _is_beyond(flags.get("delete_max"), len(extra), len(counted)):
                return Outcome(after, (InvalidArgument,), frozenset(killed))
            killed |= {tree[name] for name in extra}
            after = {name: data for name, data in after.items() if name not in extra}
        return Outcome(after, killed=frozenset(killed))

    def _move_tree(self, tree: Tree, step: Step) -> Outcome:
        """A move of a directory. What has a name that no verb takes, or none at the target, stays alone."""
        whole = {"overwrite": not step.if_not_exists, **_ALL_OF_IT}
        stuck = {name for name in tree if name.startswith(step.source) and has_dots(name)}
        stuck |= {name for name, data in tree.items() if name == step.source and data and not step.target}
        movable = {name: data for name, data in tree.items() if name not in stuck}
        copied = self._copy_tree(movable, Step("copy_tree", {**step.arguments, **whole}))
        moved = [name for name in without_markers(movable) if name.startswith(step.source)]
        if any(step.target + name[len(step.source) :] in stuck for name in moved):
            return Outcome(tree, (InvalidArgument,))
        kept = {name: data for name, data in tree.items() if name not in movable}
        markers = [name for name in tree.keys() - without_markers(tree) if name.startswith(step.source)]
        # A marker is not made again beside an object of its name.
        there = {**tree, **copied.tree}
        may_do = any(step.target + name[len(step.source) : -1] in there for name in markers)
        if copied.errors:  # Files that were renamed are at their new names. Elsewhere nothing is deleted then.
            gone = copied.copied if self.directories else ()
            left = {name: data for name, data in copied.tree.items() if name not in gone}
            return replace(copied, tree={**left, **kept}, errors=(*copied.errors, *((InvalidPath,) if kept else ())))
        sources = {name for name in movable if name.startswith(step.source)}
        targets = {step.target + name[len(step.source) :] for name in sources}
        after = {name: data for name, data in copied.tree.items() if name not in sources - targets}
        emptied = "" if step.source.startswith(step.target) else step.source
        errors: Kinds = (InvalidPath,) if kept else (AlreadyExists,) if may_do else ()
        return Outcome({**after, **kept}, errors, killed=copied.killed, emptied=emptied, may_do=may_do)


def _is_beyond(most: float | None, extra: int, counted: int) -> bool:
    """Whether the extra objects, of those that count at the destination, are more than ``delete_max``."""
    if most is None:
        return extra > 10 and extra > counted / 2
    return extra > most if isinstance(most, int) else extra > 0 and extra / counted > most


def has_dots(name: str) -> bool:
    """Whether a name has a segment that no URL can have."""
    return not {".", ".."}.isdisjoint(name.split("/"))


def _killed(value: bytes | None) -> frozenset[bytes]:
    return frozenset() if value is None else frozenset({value})


def pattern_of(glob: str) -> re.Pattern[str]:
    """A glob as an expression: ``*`` stays in a directory, ``**/`` crosses them."""
    assert "**" not in glob or glob == "**/*", glob
    return re.compile(".*" if "**" in glob else fnmatch.translate(glob).replace(".*", "[^/]*"), re.DOTALL)


def without_markers(tree: Tree) -> Tree:
    """The tree without the empty objects that stand for directories."""
    return {name: data for name, data in tree.items() if data or not name.endswith("/")}


def check(before: Tree, after: Tree, outcome: Outcome, error: Exception | None, step: Step) -> None:
    """Raise ``AssertionError`` unless a step that ended so may have made this tree of that one.

    A success has done all that the verb means. An error may leave a part of it done, but no value is lost that the verb
    was not to replace or delete, and each name has the value from before or that from after.
    """
    marked = [name for name in after if outcome.emptied and name.startswith(outcome.emptied)]
    before, after, wanted = without_markers(before), without_markers(after), without_markers(outcome.tree)
    lost = set(before.values()) - set(after.values()) - outcome.killed
    assert not lost, f"{step} lost {sorted(lost)}: {before} -> {after} ({error!r})"
    if error is None:
        assert not outcome.errors or outcome.may_do, f"{step} ended well: {before} -> {after}, not {outcome.errors}"
        assert after == wanted, f"{step}: {before} -> {after}, and {wanted} is right"
        assert not marked, f"{step} left {marked}"
        return
    for name in {*before, *after, *wanted}:
        allowed = (before.get(name), wanted.get(name))
        assert after.get(name) in allowed, f"{step}: {name!r} is {after.get(name)!r}, none of {allowed} ({error!r})"


def check_refusal(
    before: Tree, after: Tree, outcome: Outcome, error: Exception | None, step: Step, *, is_typed: bool = True
) -> None:
    """``check``, where nothing has failed but what the verb refuses: that is raised.

    With ``is_typed`` it is one of the model's errors, and leaves the model's tree.
    """
    check(before, after, outcome, error, step)
    if error is None:
        return
    assert outcome.errors, f"{step}: {error!r} ({before})"
    if is_typed and not outcome.may_do:
        assert isinstance(error, outcome.errors), f"{step}: {error!r}, not one of {outcome.errors} ({before})"
        after, wanted = without_markers(after), without_markers(outcome.tree)
        assert after == wanted, f"{step}: {before} -> {after}, and {wanted} is right ({error!r})"
