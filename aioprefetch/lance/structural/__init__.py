"""Versions 2.1 and 2.2 of the Lance file format: structural encodings, which keep nesting in levels.

Supported are mini-block, full-zip and constant pages of flat, string, dictionary and fixed-size-list columns, packed
structs, and lists, structs and maps of them at any depth. Anything else raises ``Unsupported`` with its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.lance.structural.assembly import CONCATENATED
    from aioprefetch.lance.structural.fields import make_field
    from aioprefetch.lance.structural.layouts import parse_layout

__all__ = ["CONCATENATED", "make_field", "parse_layout"]

load_at_first_use(
    __name__,
    {
        "CONCATENATED": "assembly",
        "make_field": "fields",
        "parse_layout": "layouts",
    },
)
