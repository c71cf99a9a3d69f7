"""The principal, endpoint, region and settings of a recipe that leaves them to the variables and files of AWS here.

They are found without botocore and without a request, since they are part of the keys of caches: they must never be the
same for two principals that may see different bytes. An access key that stands in a variable or a file names its
principal by itself. Where a provider has to be asked (a role, SSO, a process, the metadata of a machine), everything
that decides its response stands for it, and this user on this machine where that does not decide it alone.

The files are read in the format that botocore reads. Their sections are kept for as long as a file does not change,
without the secrets in them; keys are read again each time. Settings for another endpoint than ours are left to
botocore, which is asked for it (``endpoint.why_asked``); those for another kind of signature are refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from typing import Literal

from aioprefetch.credentials import digest
from aioprefetch.errors import redact
from aioprefetch.lean_dataclass import dataclass
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


def _is_other_signature(value: str) -> bool:
    """Whether a preference has another version of signatures before ours."""
    names = (name.strip().rpartition("#")[2] for name in value.split(","))
    return next((name for name in names if name.startswith("sigv4")), "sigv4") != "sigv4"


# --- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name for people, its variable, its place in a profile (``s3.`` for the block of S3 in it)."""

    name: str
    variable: str = ""
    entries: tuple[str, ...] = ()
    asks: Callable[[str], bool] = field(default=lambda value: value.strip().lower() == "true")
    is_refused: bool = False

    def __str__(self) -> str:
        return (
            f"{self.name} ({', '.join(filter(None, (self.variable, *self.entries)))})" if self.is_refused else self.name
        )


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "dual-stack endpoints",
        "AWS_USE_DUALSTACK_ENDPOINT",
        ("use_dualstack_endpoint", "s3.use_dualstack_endpoint"),
    ),
    Setting("FIPS endpoints", "AWS_USE_FIPS_ENDPOINT", ("use_fips_endpoint",)),
    Setting("transfer acceleration", "", ("s3.use_accelerate_endpoint",)),
    Setting("regions of ARNs", "AWS_S3_USE_ARN_REGION", ("s3_use_arn_region", "s3.use_arn_region")),
    Setting(
        "a kind of endpoint for us-east-1",
        "AWS_S3_US_EAST_1_REGIONAL_ENDPOINT",
        ("s3_us_east_1_regional_endpoint", "s3.us_east_1_regional_endpoint"),
        bool,
    ),
    Setting("botocore's data from another folder", "AWS_DATA_PATH", ("data_path",), bool),
    # Each body is signed here, for one region.
    Setting("unsigned payloads", "", ("s3.payload_signing_enabled",), lambda value: value.lower() == "false", True),
    Setting(
        "signatures for several regions", "AWS_SIGV4A_SIGNING_REGION_SET", ("sigv4a_signing_region_set",), bool, True
    ),
    Setting("other signatures", "AWS_AUTH_SCHEME_PREFERENCE", ("auth_scheme_preference",), _is_other_signature, True),
)
VARIABLES = tuple(setting.variable for setting in SETTINGS if setting.variable)


def asked_settings(values: Mapping[str, str], section: Mapping[str, str], *, is_refused: bool) -> tuple[str, ...]:
    """The names of the settings of one kind that these variables, or this section of a profile, ask for."""
    entries = {**section, **{f"s3.{name}": value for name, value in nested(section, "s3").items()}}
    return tuple(
        str(setting)
        for setting in SETTINGS
        if setting.is_refused == is_refused
        and any(
            setting.asks(value)
            for value in (values.get(setting.variable, ""), *(entries.get(entry, "") for entry in setting.entries))
            if value
        )
    )


# --- principal, endpoint and region -----------------------------------------------------------------------------------

# Where the keys of a recipe without keys are: ``elsewhere`` is what only botocore's providers can tell.
KeyPlace = Literal["variables", "files", "elsewhere"]

_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_BUNDLE_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_PROFILE_VARIABLES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
_CONTAINER = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
_WEB_IDENTITY = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN")
# The variables that decide on botocore's credentials, in addition to the sections of the profile.
_DECIDING = (
    *(*_WEB_IDENTITY, "AWS_ROLE_SESSION_NAME", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *_CONTAINER,
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    *("AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"),
    *("AWS_CREDENTIAL_FILE", "BOTO_CONFIG"),
)
_ALL_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_CREDENTIAL_EXPIRATION", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "HOME"),
    *_BUNDLE_VARIABLES,
    *VARIABLES,
    *(*_PROFILE_VARIABLES, *_ENDPOINT_VARIABLES, *_REGION_VARIABLES, *_DECIDING),
)
# The configuration and the credentials first; then files of very old tools, which botocore reads as well.
_FILES = (
    ("AWS_CONFIG_FILE", "~/.aws/config"),
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("AWS_CREDENTIAL_FILE", ""),
    ("BOTO_CONFIG", "~/.boto"),
)
# A profile with one of these does not use the access key that may stand beside it.
_ASKED = ("web_identity_token_file", "role_arn", "source_profile", "credential_source", "credential_process")
_ASKED_PREFIXES = ("sso_", "login_")
_CHAIN_MAX = 10


@dataclass(frozen=True, slots=True)
class Ambient:
    """The settings in variables and files, each ``""`` if it is not there.

    ``endpoint`` is without its user. ``profile`` is the profile whose section counts; ``asked`` are the settings for
    which botocore is asked for the endpoint, ``refused`` the unsupported ones, and ``problem`` says why the
    files cannot be used. ``provider`` is what botocore asks for keys, for people; ``mfa`` the profile for
    which it would ask a person for a code.
    """

    principal: str
    endpoint: str
    region: str
    ca_bundle: str
    addressing_style: str
    profile: str
    key_place: KeyPlace
    files: tuple[str, str]
    asked: tuple[str, ...]
    refused: tuple[str, ...]
    problem: str
    provider: str
    mfa: str


def ambient(profile: str | None, *, has_identity: bool, files: bool = True) -> Ambient:
    """The principal, endpoint and region that botocore would find now: in variables, and in ``files`` on this machine.

    ``has_identity``: the recipe has keys or needs none, so that no profile is named but its own.
    """
    variables = tuple((name, value) for name in _ALL_VARIABLES if (value := os.environ.get(name)))
    return _resolved(profile, has_identity, variables, file_states(files=files))


def file_states(*, files: bool = True) -> tuple[FileAt, ...]:
    """The configuration files of AWS here, each with its state; ``None`` without ``files``."""
    names = [os.environ.get(name) or default for name, default in _FILES if os.environ.get(name, default)]
    paths = [os.path.expanduser(os.path.expandvars(name)) for name in names]
    return tuple((path, state_of(path) if files else None) for path in paths)


@lru_cache(maxsize=64)
def _resolved(
    profile: str | None,
    has_identity: bool,
    variables: tuple[tuple[str, str], ...],
    files: tuple[FileAt, ...],
) -> Ambient:
    """The result of ``ambient`` for these values of variables and states of files; a changed file has another state."""
    values = dict(variables)
    named = profile or ("" if has_identity else _first_set(values, _PROFILE_VARIABLES))
    sections = merged_sections(*files[:2])
    section = sections.get(f"profile {named or 'default'}", {})
    source = _Source(profile, named, values, section, sections, files)
    return Ambient(
        principal="" if has_identity else source.principal(),
        endpoint=redact(source.endpoint()),
        region=_first_set(values, _REGION_VARIABLES) or section.get("region", ""),
        ca_bundle=values.get("AWS_CA_BUNDLE") or section.get("ca_bundle") or values.get("REQUESTS_CA_BUNDLE", ""),
        addressing_style=nested(section, "s3").get("addressing_style", ""),
        profile=named,
        key_place=source.key_place(),
        files=(files[0][0], files[1][0]),
        asked=asked_settings(values, section, is_refused=False),
        refused=asked_settings(values, section, is_refused=True),
        problem=source.problem(),
        provider=source.provider(),
        mfa=source.mfa(),
    )


def _first_set(values: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((values[name] for name in names if name in values), "")


@dataclass(frozen=True, slots=True)
class _Source:
    """The origin of an identity: variables, the section of the profile, all sections, and the states of the files."""

    profile: str | None
    named: str
    values: Mapping[str, str]
    section: Mapping[str, str]
    sections: Sections
    files: tuple[FileAt, ...]

    def key_place(self) -> KeyPlace:
        """The place of the keys, in botocore's order: variables, roles, web identities, SSO, files, processes."""
        if self._by_keys():
            # With an end, botocore reads the variables again and again.
            return "elsewhere" if "AWS_CREDENTIAL_EXPIRATION" in self.values else "variables"
        if self.section.get("aws_access_key_id") and not self._by_variables() and not self._asking():
            return "files"
        return "elsewhere"

    def problem(self) -> str:
        """Why botocore would refuse the files, ``""`` if it would not."""
        if UNREADABLE in self.sections:
            return "a configuration file of AWS that cannot be parsed"
        if self.named and f"profile {self.named}" not in self.sections:
            return "a profile that is in no configuration file"
        if redact(self.endpoint()) != self.endpoint():
            return "an endpoint with a user or a query"
        return ""

    def _by_keys(self) -> bool:
        return self.profile is None and bool(self.values.get("AWS_ACCESS_KEY_ID"))

    def _by_variables(self) -> bool:
        return self.profile is None and all(name in self.values for name in _WEB_IDENTITY)

    def principal(self) -> str:
        """The name of the principal."""
        if self._by_keys():
            return f"environment:{digest(self.values['AWS_ACCESS_KEY_ID'])}"
        who = f"profile:{self.named}" if self.named else "environment"
        by_variables = self._by_variables()
        key_id = self.section.get("aws_access_key_id")
        if key_id and not by_variables and not self._asking():
            return f"{who}:{digest(key_id)}"
        parts = [self.named, *(f"{name}={self.values.get(name, '')}" for name in _DECIDING)]
        parts += [f"{title} {sorted(content.items())}" for title, content in self._chain()]
        # The address of a task's credentials holds an identifier of its own.
        is_task = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI" in self.values
        if not (by_variables or is_task or self._is_named_by_chain()):
            parts += self._machine()
        return f"{who}:{digest(*parts)}"

    def _asking(self) -> str:
        """The entry of the profile by which botocore asks a provider for keys, ``""`` for none."""
        others = (name for name in self.section if name.startswith(_ASKED_PREFIXES))
        return next((name for name in (*_ASKED, *others) if name in self.section), "")

    def provider(self) -> str:
        """The provider that botocore asks for keys, in words for people."""
        entry = self._asking()
        if self._by_keys():
            return "the variable AWS_ACCESS_KEY_ID"
        if self._by_variables() and entry != "role_arn":
            return "the web identity of AWS_WEB_IDENTITY_TOKEN_FILE"
        if entry:
            return f"{entry} of profile {self.named or 'default'}"
        container = next((name for name in _CONTAINER if self.values.get(name)), "")
        return f"the metadata of the container ({container})" if container else "the metadata of the machine"

    def mfa(self) -> str:
        """The profile whose role takes a code that a person reads from a device, ``""`` for none."""
        if self._by_keys():
            return ""
        for title, section in self._chain():
            if title.startswith("sso-session "):
                continue
            is_role = "role_arn" in section and "web_identity_token_file" not in section
            if not is_role or ("aws_access_key_id" in section and section is not self.section):
                return ""  # The keys that the roles before it are assumed with.
            if "mfa_serial" in section:
                return title
        return ""

    def _is_named_by_chain(self) -> bool:
        """Whether a role is assumed with a key that stands in the files, or with the token of a web identity."""
        if "role_arn" not in self.section:
            return False
        *_, (_, last) = self._chain()
        return "web_identity_token_file" in self.section or (
            "aws_access_key_id" in last and "credential_source" not in last
        )

    def _chain(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """The sections that the identity is made of: the profile, its SSO session, those it takes keys from."""
        title, section = f"profile {self.named or 'default'}", self.section
        for _ in range(_CHAIN_MAX):
            session = section.get("sso_session")
            if session is not None:
                yield f"sso-session {session}", self.sections.get(f"sso-session {session}", {})
            yield title, section
            source = section.get("source_profile")
            if source is None or f"profile {source}" == title:
                return
            title = f"profile {source}"
            section = self.sections.get(title, {})

    def _machine(self) -> list[str]:
        """This user on this machine, whose home and metadata botocore would ask."""
        import platform

        return [platform.node(), str(os.getuid()), os.path.expanduser("~"), *map(str, self.files[2:])]

    def endpoint(self) -> str:
        """The endpoint in variables or files, in botocore's order."""
        name = "ignore_configured_endpoint_urls"
        if (self.values.get(f"AWS_{name.upper()}") or self.section.get(name, "")).lower() == "true":
            return ""
        services = self.sections.get(f"services {self.section.get('services', '')}", {})
        url = _first_set(self.values, _ENDPOINT_VARIABLES) or nested(services, "s3").get("endpoint_url")
        return url or self.section.get("endpoint_url", "")
