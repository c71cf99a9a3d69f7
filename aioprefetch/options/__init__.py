"""The table of options: rows at the fields that hold their values, kinds that check them, and what follows from both.

A row has what checks, variables, URIs, Spark, fsspec, the command line, messages, types and the pages of options need.
``docs/guides/service.md`` shows the rows of a service of your own. Pure.
"""

from aioprefetch.options.kinds import (
    Checked,
    Choice,
    File,
    Flag,
    Integer,
    Kind,
    Seconds,
    Secrets,
    SecretText,
    Size,
    Text,
)
from aioprefetch.options.table import Option, check, in_uri, option, table_of

__all__ = [
    "Checked",
    "Choice",
    "File",
    "Flag",
    "Integer",
    "Kind",
    "Option",
    "Seconds",
    "SecretText",
    "Secrets",
    "Size",
    "Text",
    "check",
    "in_uri",
    "option",
    "table_of",
]
