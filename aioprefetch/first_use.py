"""The names of a package that load at their first use.

The ``__init__`` of a package that loads late imports none of its modules that others import. While it did, a thread
would hold the lock of the package and wait for the lock of a module; another thread that imports this module at that
moment holds the module's lock and waits for the package. Python finds the deadlock and lets one of the imports fail.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from aioprefetch.errors import MissingDependency


def load_at_first_use(package: str, modules: Mapping[str, Sequence[str]], *, extra: str = "", hint: str = "") -> None:
    """Let ``package`` load each name from its module when the name is first used; ``modules`` has the names of each.

    A module is named relative to the package. If one needs a package that is missing, or a later one, the use of the
    name raises ``MissingDependency`` that names ``extra`` and ends with ``hint``; without ``extra`` it is an
    ``ImportError`` as any other.
    """
    room = sys.modules[package]
    module_of = {name: module for module, names in modules.items() for name in names}
    room.__dict__.update(_modules=module_of, _extra=extra, _hint=hint)
    room.__class__ = _Package


class _Package(ModuleType):
    """A package with such names. Names that a module has too (``plan`` of ``plan.py``) are never the module."""

    _modules: dict[str, str]
    _extra: str
    _hint: str

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._modules or not isinstance(value, ModuleType):  # The import system binds each module.
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        package = self.__name__
        if name not in self._modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(importlib.import_module(f"{package}.{self._modules[name]}"), name)
        except ImportError as error:
            missing = error.name or ""
            if not self._extra or isinstance(error, MissingDependency) or missing.partition(".")[0] == "aioprefetch":
                raise
            what = missing if isinstance(error, ModuleNotFoundError) else f"a later {missing}"
            raise MissingDependency(
                f"{package}.{name} needs {what}: pip install 'aioprefetch[{self._extra}]'{self._hint}",
                operation="import",
            ) from error
        setattr(self, name, value)
        return value

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        """By its name: functions that Spark sends to its workers refer to packages."""
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        """All names, loaded or not: completion shows them."""
        return sorted({*self.__dict__, *self._modules})
