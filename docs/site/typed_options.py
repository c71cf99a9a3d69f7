"""What griffe does not do by itself: options of a call and fields of a value, in tables with their meaning.

``**options: Unpack[SomeOptions]`` becomes the fields of that ``TypedDict`` and of all its bases. A field without a
description of its own has that of the constructor which takes it: the one of ``Operator``, or of a service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from griffe import (
    Class,
    DocstringAttribute,
    DocstringParameter,
    DocstringSectionAttributes,
    DocstringSectionKind,
    DocstringSectionParameters,
    ExprSubscript,
    Extension,
    Function,
    Module,
    Object,
    Parameter,
    ParameterKind,
)

# Text that stands alone in a terminal too: in Markdown one colon is enough.
ENDS_IN_TWO_COLONS = re.compile(r"::$", re.MULTILINE)
# With more options than that, a signature says ``**options``, and the table below it lists them.
SHOWN_IN_THE_SIGNATURE = 12
# Constructors that describe options, the first one first.
DESCRIBED_BY = (
    "operator.operator.Operator",
    "reader.options.ReaderRows",
    "services.s3.recipe.S3",
    "services.http.recipe.Http",
    "services.fs.recipe.Fs",
    "services.obspec.clouds.Gcs",
    "services.obspec.clouds.Azure",
)
# Calls that spell out the fields of a ``TypedDict``, which describes them.
SPELT_OUT = {
    "operator.operator.Operator.reader": "operator.options.OpenOptions",
    "operator.operator.Operator.read_ranges": "operator.options.RangesOptions",
    "operator.operator.Operator.view_ranges": "operator.options.RangesOptions",
}


class TypedOptions(Extension):
    """Expands the options of calls, once the whole package has been read."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Expand them in all functions of a package."""
        if pkg.name != "aioprefetch":
            return
        for item in (pkg, *objects_below(pkg)):
            if item.docstring is not None:
                item.docstring.value = ENDS_IN_TWO_COLONS.sub(":", item.docstring.value)
        texts = {item.name: str(item.description) for path in reversed(DESCRIBED_BY) for item in described(pkg[path])}
        for item in objects_below(pkg):
            if isinstance(item, Class):
                list_fields(item)
            elif isinstance(item, Function) and (fields := unpacked_by(item, pkg)) is not None:
                expand(item, {name: described_field(field, texts) for name, field in fields.items()})
        for path, options in SPELT_OUT.items():
            describe(pkg[path], fields_of(pkg[options]), texts)


def objects_below(parent: Object) -> Iterator[Object]:
    """What is in a module or class, and all in that. Members that were imported are elsewhere."""
    for member in parent.members.values():
        if not member.is_alias:
            yield member
            yield from objects_below(member)


def unpacked_by(function: Function, package: Module) -> Mapping[str, Parameter] | None:
    """The fields of the ``TypedDict`` that a function unpacks."""
    for parameter in function.parameters:
        annotation = parameter.annotation
        if parameter.kind is not ParameterKind.var_keyword or not isinstance(annotation, ExprSubscript):
            continue
        if annotation.canonical_path.rpartition(".")[2] == "Unpack":
            return fields_of(package.modules_collection[annotation.slice.canonical_path])
    return None


def fields_of(options: Class) -> dict[str, Parameter]:
    """The fields of a ``TypedDict``, those of its bases first."""
    fields: dict[str, Parameter] = {}
    for base in options.resolved_bases:
        if isinstance(base, Class):
            fields |= fields_of(base)
    for name, field in options.attributes.items():
        optional = "None" in str(field.annotation)
        fields[name] = Parameter(
            name,
            annotation=field.annotation,
            kind=ParameterKind.keyword_only,
            default="None" if optional else "...",
            docstring=field.docstring,
        )
    return fields


def described(owner: Class) -> list[DocstringParameter]:
    """The parameters that the docstring of a class describes."""
    sections = owner.docstring.parsed if owner.docstring is not None else []
    return [item for section in sections if section.kind is DocstringSectionKind.parameters for item in section.value]


def described_field(field: Parameter, texts: Mapping[str, str]) -> DocstringParameter:
    """The row of a field in a table of parameters."""
    own = field.docstring.value if field.docstring is not None else ""
    return DocstringParameter(
        field.name, description=own or texts.get(field.name, ""), annotation=field.annotation, value=str(field.default)
    )


def expand(function: Function, fields: Mapping[str, DocstringParameter]) -> None:
    """Put fields in the place of ``**options``, in the signature if it stays short, and in the table."""
    (options,) = (item for item in function.parameters if item.kind is ParameterKind.var_keyword)
    add_to_table(function, list(fields.values()))
    if len(fields) > SHOWN_IN_THE_SIGNATURE:
        options.annotation = None
        return
    del function.parameters[options.name]
    for name, field in fields.items():
        function.parameters[name] = Parameter(
            name, annotation=field.annotation, kind=ParameterKind.keyword_only, default=field.value
        )


def describe(function: Function, fields: Mapping[str, Parameter], texts: Mapping[str, str]) -> None:
    """Add those parameters of a function that are fields of its options to its table, with its own defaults."""
    rows = []
    for parameter in function.parameters:
        if field := fields.get(parameter.name):
            field.default = parameter.default
            rows.append(described_field(field, texts))
    add_to_table(function, rows)


def add_to_table(function: Function, fields: list[DocstringParameter]) -> None:
    """Add those that have a description to the parameters that a docstring describes."""
    rows = [field for field in fields if field.description]
    if not rows or function.docstring is None:
        return
    sections = function.docstring.parsed
    tables = [section for section in sections if section.kind is DocstringSectionKind.parameters]
    if tables:
        tables[0].value.extend(rows)
    else:
        sections.append(DocstringSectionParameters(rows))


def list_fields(value: Class) -> None:
    """Add a table of its fields to a dataclass, unless its docstring describes them as parameters."""
    is_dataclass = any("dataclass" in str(decorator.value) for decorator in value.decorators)
    if not is_dataclass or value.docstring is None or described(value):
        return
    rows = [
        DocstringAttribute(
            name, annotation=field.annotation, description=field.docstring.value if field.docstring is not None else ""
        )
        for name, field in value.attributes.items()
        if field.annotation is not None and not name.startswith("_") and "property" not in field.labels
    ]
    if rows:
        value.docstring.parsed.append(DocstringSectionAttributes(rows))
