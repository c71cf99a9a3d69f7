"""Two clients of one store at once: what may become of its tree, where each request is a step of its own.

A verb is a sequence of requests, and each of these changes the tree at once. Between two of them the other client may
do anything. So there is a set of trees that may be there in the end; errors that were raised leave some of them out.
"""

from collections.abc import Iterator, Sequence

from aioprefetch.errors import AlreadyExists, ConditionNotMatch, Error, NotFound, ObjectChanged, ProtocolError
from tests.model.verbs.tree import Kinds, Step, Tree

# What a verb has done so far: the number of its requests, and the value that it has seen.
Progress = tuple[int, bytes | None]
START: Progress = (0, None)
Frozen = frozenset[tuple[str, bytes]]
# A tree, and for each client the number of its steps that are done and the progress of the next.
State = tuple[Frozen, tuple[tuple[int, Progress], ...]]
Ended = tuple[Error | None, bytes | None]
DONE: Kinds = ()


def requests(tree: Tree, step: Step, progress: Progress) -> Iterator[tuple[Tree, Progress, Kinds | None]]:
    """The outcomes of the next request of a step: a tree, the progress, and how the step has ended, if it has.

    A store has other ETags for a value that was there, went and came back: where ETags are compared both may be.
    """
    match step.verb:
        case "write":
            yield from _written(tree, step)
        case "read":
            yield tree, (0, tree.get(step.path)), DONE if step.path in tree else (NotFound,)
        case "delete":
            yield from _deleted(tree, step)
        case "copy":
            yield from _copied(tree, step, step.arguments["expected"], (ConditionNotMatch,))
        case "move":
            yield from _moved(tree, step, progress)


def _matches(there: bytes | None, expected: bytes | None) -> list[bool]:
    """Whether the ETag of what is there is that of what was there when the step began."""
    if expected is None:
        return [True]
    return [True, False] if there == expected else [False]


def _written(tree: Tree, step: Step) -> Iterator[tuple[Tree, Progress, Kinds | None]]:
    there = tree.get(step.path)
    if step.if_not_exists and there is not None:
        yield tree, START, (AlreadyExists,)
        return
    for matches in _matches(there, step.arguments["expected"]):
        yield ({**tree, step.path: step.data}, START, DONE) if matches else (tree, START, (ConditionNotMatch, NotFound))


def _deleted(tree: Tree, step: Step) -> Iterator[tuple[Tree, Progress, Kinds | None]]:
    there, expected = tree.get(step.path), step.arguments["expected"]
    if there is None:
        yield tree, START, DONE
        if expected is not None:
            yield tree, START, (ConditionNotMatch, NotFound)
        return
    for matches in _matches(there, expected):
        yield (_without(tree, step.path), START, DONE) if matches else (tree, START, (ConditionNotMatch,))


def _copied(
    tree: Tree, step: Step, expected: bytes | None, errors: Kinds, then: Kinds | None = DONE
) -> Iterator[tuple[Tree, Progress, Kinds | None]]:
    value = tree.get(step.source)
    if value is None:
        yield tree, START, (NotFound, *errors)
        return
    for matches in _matches(value, expected):
        if not matches:
            yield tree, START, errors
        elif step.if_not_exists and step.target in tree:
            yield tree, (2, value), (AlreadyExists,)
            if then is None and tree[step.target] == value:  # That of a move that did not come to its end.
                yield tree, (2, value), then
        else:
            yield {**tree, step.target: value}, (2, value), then


def _moved(tree: Tree, step: Step, progress: Progress) -> Iterator[tuple[Tree, Progress, Kinds | None]]:
    number, seen = progress
    there = tree.get(step.source)
    if number == 0:  # A look at the source.
        for matches in _matches(there, step.arguments["expected"]):
            if there is None or not matches:
                yield tree, START, (NotFound, ConditionNotMatch)
            else:
                yield tree, (1, there), None
    elif number == 1:
        yield from _copied(tree, step, seen, (ObjectChanged, NotFound), None)
    elif number == 2:  # A look at the target, which may be another client's by now.
        if tree.get(step.target) == seen:
            yield tree, (3, seen), None
        if tree.get(step.target) != seen or tree[step.target] == tree.get(step.source):
            yield tree, (3, seen), (ProtocolError, NotFound, AlreadyExists)
    elif there is None:  # A look at the source, then its deletion.
        yield tree, START, DONE
    else:
        for matches in _matches(there, seen):
            if not matches:
                yield tree, START, (ObjectChanged,)
            elif number == 3:
                yield tree, (4, seen), None
            else:
                yield _without(tree, step.source), START, DONE


def _without(tree: Tree, path: str) -> Tree:
    return {name: value for name, value in tree.items() if name != path}


def possible_trees(tree: Tree, sequences: Sequence[Sequence[Step]], ends: Sequence[Sequence[Ended]]) -> set[Frozen]:
    """The trees that may be there after all steps, given how each has ended: its error and the bytes that it has read.

    There is none if no order of the requests explains how they have ended.
    """
    start: State = frozenset(tree.items()), tuple((0, START) for _ in sequences)
    reached, waiting, finals = {start}, [start], set[Frozen]()
    while waiting:
        frozen, positions = waiting.pop()
        if all(position == len(steps) for (position, _), steps in zip(positions, sequences, strict=True)):
            finals.add(frozen)
        for client, (position, progress) in enumerate(positions):
            if position == len(sequences[client]):
                continue
            step = sequences[client][position]
            for after, further, kinds in requests(dict(frozen), step, progress):
                if kinds is not None and not _is_end(step, kinds, further, ends[client][position]):
                    continue
                place = (position, further) if kinds is None else (position + 1, START)
                state = frozenset(after.items()), (*positions[:client], place, *positions[client + 1 :])
                if state not in reached:
                    reached.add(state)
                    waiting.append(state)
    return finals


def _is_end(step: Step, kinds: Kinds, progress: Progress, ended: Ended) -> bool:
    error, value = ended
    if kinds:
        return isinstance(error, kinds)
    return error is None and (step.verb != "read" or value == progress[1])


# --- verbs of many ----------------------------------------------------------------------------------------------------

Values = dict[str, set[bytes]]


def _values(tree: Tree, steps: Sequence[Step], without: tuple[int, str] = (-1, "")) -> Values:
    """For each name the values that may be there at some time, in any order of the requests.

    ``without`` is the number of a step and a name: what this step writes there itself is left out.
    """
    values: Values = {name: {value} for name, value in tree.items()}
    while True:
        before = sum(map(len, values.values()))
        for number, step in enumerate(steps):
            for name, source in _written_names(step, values).items():
                if (number, name) == without:
                    continue
                values.setdefault(name, set()).update(values[source] if source else {step.data})
        if sum(map(len, values.values())) == before:
            return values


def _written_names(step: Step, values: Values) -> dict[str, str]:
    """The names that a step may write, and from which it takes what it writes there."""
    if step.verb == "write":
        return {step.path: ""}
    if step.verb in ("copy", "move"):
        return {step.target: step.source} if step.source in values else {}
    if step.verb in ("copy_tree", "move_tree"):
        source, target = step.source, step.target
        return {target + name[len(source) :]: name for name in values if name.startswith(source)}
    return {}


def killed_values(tree: Tree, steps: Sequence[Step]) -> set[bytes]:
    """The values that some step may replace or delete where it is meant to. All others have to be there in the end."""
    killed: set[bytes] = set()
    everywhere = _values(tree, steps)
    for number, step in enumerate(steps):
        for name in _written_names(step, everywhere):
            killed |= _values(tree, steps, (number, name)).get(name, set())
        for name, values in everywhere.items():
            if _deletes(step, name):
                killed |= values
    return killed


def _deletes(step: Step, name: str) -> bool:
    """Whether a step is meant to delete what has a name."""
    if step.verb == "delete":
        return name == str(step.path)
    if step.verb == "delete_all":
        return name.startswith(step.path)
    return bool(step.arguments.get("delete_extra")) and name.startswith(step.target)
