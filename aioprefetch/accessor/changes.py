"""The last change of this process, in any store, by any operator: what was learned before it is asked again."""

# The operations that may change what is there.
CHANGING = frozenset({"write", "copy", "rename", "delete", "create_dir"})

_latest = object()


def note_change() -> None:
    """Something may have been changed, also if the request has failed. From any thread."""
    global _latest
    _latest = object()


def latest_change() -> object:
    """A mark: the same object as before, if nothing was changed since."""
    return _latest
