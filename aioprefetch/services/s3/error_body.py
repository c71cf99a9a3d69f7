"""The XML of an error, as a flat dictionary. Pure, no I/O."""

from __future__ import annotations

from xml.etree import ElementTree as ET


def parse_error(body: bytes) -> dict[str, str]:
    """Name and text of each element below ``Error``; nothing for what is no error of S3.

    A document type is refused before it is parsed: entities could make megabytes out of a few bytes.
    """
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        return {}
    try:
        root = ET.fromstring(body)
    except ET.ParseError:
        return {}
    error = root if _name(root) == "Error" else next((one for one in root if _name(one) == "Error"), None)
    return {} if error is None else {_name(one): (one.text or "").strip() for one in error}


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]
