"""What this process has changed last in any store: what was learned of an object before is then asked of the store.

One mark for all stores and loops: a change by another operator, on another loop or under another name of the object is
noticed too. It costs a request more at most, where something else was changed.
"""

# The operations after which an object, or its absence, may be another one.
CHANGING = frozenset({"write", "copy", "rename", "delete", "create_dir"})

_latest = object()


def note_change() -> None:
    """Something may have been changed, also if the request for it has failed. From any thread."""
    global _latest
    _latest = object()


def latest_change() -> object:
    """The last change as a mark: the same object as before, if there was none since."""
    return _latest
