"""The configuration files of AWS on this machine, in the format that botocore reads.

Sections are kept for as long as a file does not change, without the secrets in them; keys are read again each time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

from aioprefetch.services.s3.sigv4 import AccessKeys

Sections = Mapping[str, Mapping[str, str]]
# Inode, size and time of a file; ``None`` for a file that is not there.
FileState = tuple[int, int, int] | None
FileAt = tuple[str, FileState]

# The title that a file gets which botocore cannot parse either.
UNREADABLE = "a file that cannot be read"
_TOKENS = ("aws_security_token", "aws_session_token")
_SECRETS = frozenset({"aws_secret_access_key", *_TOKENS})


def state_of(path: str) -> FileState:
    """The state of a file, which is another one after each change."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=16)
def merged_sections(configuration: FileAt, credentials: FileAt) -> Sections:
    """The sections of both files, titled ``profile NAME``, ``sso-session NAME``, ``services NAME``.

    There is a section ``UNREADABLE`` if one of the files cannot be parsed.
    """
    merged: dict[str, dict[str, str]] = {}
    for (path, state), titled in ((configuration, _title_of), (credentials, "profile {}".format)):
        # Of two sections of a file with the same meaning ("default", "profile default") the last one counts, as in
        # botocore: a token of one must not go with the keys of the other.
        sections = {}
        for title, content in _parsed(path).items() if state is not None else ():
            sections[title if title == UNREADABLE else titled(title)] = content
        for title, content in sections.items():
            shown = {name: value for name, value in content.items() if name not in _SECRETS}
            merged.setdefault(title, {}).update(shown)
    return merged


def keys_in_files(profile: str, configuration: str, credentials: str) -> AccessKeys | None:
    """The keys of a profile, of the credentials first; ``None`` if no file has both of them. Blocks."""
    for path, titled in ((credentials, "profile {}".format), (configuration, _title_of)):
        found: dict[str, str] = {}
        for title, content in _parsed(path).items():
            if titled(title) == f"profile {profile}":
                found = content
        key_id = found.get("aws_access_key_id")
        if key_id is not None:
            secret = found.get("aws_secret_access_key")
            token = next((found[name] for name in _TOKENS if name in found), None)
            return None if not (key_id and secret) else AccessKeys(key_id, secret, token)
    return None


def nested(section: Mapping[str, str], name: str) -> dict[str, str]:
    """The settings in an indented block of a section."""
    lines = (line.partition("=") for line in section.get(name, "").splitlines())
    return {key.strip(): value.strip() for key, sign, value in lines if sign}


def _parsed(path: str) -> dict[str, dict[str, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return {}
    except UnicodeError:
        return {UNREADABLE: {}}
    if not text:
        return {}
    import configparser

    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read_string(text)
    except configparser.Error:
        return {UNREADABLE: {}}
    return {title: dict(parser.items(title)) for title in parser.sections()}


def _title_of(title: str) -> str:
    import shlex

    try:
        parts = shlex.split(title)
    except ValueError:
        return title
    return f"profile {title}" if parts == ["default"] else " ".join(parts)
