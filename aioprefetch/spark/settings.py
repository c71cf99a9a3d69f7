"""The settings of one source, and the text options of a DataFrame reader that they are made from.

Settings are plain data: they travel by pickle, and their repr shows no secret. The user's options win over options that
``register`` read from the session (``hadoop``), for each location of the source by itself (``Places``).

A URL is the directory that the operator is rooted at, and the glob below it: ``s3://bucket/landing/2026/*.jsonl`` is
the directory ``s3://bucket/landing/2026`` and the glob ``*.jsonl``, so that no listing ever looks outside the longest
part of the path that has no wildcard.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from aioprefetch.errors import ConfigInvalid, printable, redact
from aioprefetch.operator.from_uri import split_uri
from aioprefetch.plan.patterns import alternatives, compile_glob, has_wildcard, literal_glob, wildcard_at
from aioprefetch.source.columns.casts import in_zone, set_zone_advice
from aioprefetch.source.list.pages import Selection
from aioprefetch.source.options import (
    AdmissionOptions,
    CleanSource,
    FailureOptions,
    FormatOptions,
    ListOptions,
    PartitionOptions,
    ReadOptions,
)
from aioprefetch.source.state.store import path_below, would_be_read
from aioprefetch.spark.hadoop import SessionSettings
from aioprefetch.spark.options import (
    CREDENTIAL_NAMES,
    GROUPS,
    OPEN_FILE_PREFIXES,
    RECORD_FORMATS,
    SOURCE_OPTIONS,
    check_arrow,
    check_format,
    store_options_of_all,
    store_texts,
    unknown_option,
    value_of,
)

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class SourceUrl:
    """The location of a source. ``root`` is the URL of a directory, ``glob`` filters paths below it (``None``: all).

    ``parent`` and ``name`` are set where the URL may also name one object: the directory it would lie in, and its
    name. Only the store can decide.
    """

    root: str
    glob: str | None = None
    parent: str | None = None
    name: str | None = None

    @property
    def bucket(self) -> str | None:
        """The bucket of an S3 URL."""
        scheme, rest = split_uri(self.root)
        return rest.partition("/")[0] if scheme in ("s3", "s3a") else None


def source_url(text: str, *, option: str = "path") -> SourceUrl:
    """Take a URL or a local path apart. Local paths become absolute.

    ``ConfigInvalid`` for an unknown scheme, for credentials in the URL, and for alternatives in braces.
    """
    url = directory_url(text, option=option)
    scheme, rest = split_uri(url)
    head, separator, path = _split_root(scheme, rest)
    _check_glob(path, option)
    if not has_wildcard(path):
        if not path or path.endswith("/"):
            return SourceUrl(f"{scheme}://{head}{separator}{path}".rstrip("/") if path else f"{scheme}://{head}/")
        parent, _, name = path.rpartition("/")
        return SourceUrl(f"{scheme}://{head}{separator}{path}", None, f"{scheme}://{head}{separator}{parent}", name)
    directory, _, _ = path[: wildcard_at(path)].rpartition("/")
    glob = path[len(directory) + 1 if directory else 0 :]
    return SourceUrl(f"{scheme}://{head}{separator}{directory}", glob)


def joint_url(texts: Sequence[str]) -> SourceUrl:
    """Several paths, or one with alternatives in braces, as one: their common directory, and a glob of all below it.

    ``ConfigInvalid`` for paths of different stores.
    """
    urls = [source_url(one) for text in texts for one in alternatives(text)]
    if len(urls) == 1:
        return urls[0]
    roots = [url.root if url.glob is not None or url.parent is None else url.parent for url in urls]
    parts = [root.split("/") for root in roots]
    common = next((n for n, same in enumerate(zip(*parts, strict=False)) if len({*same}) > 1), min(map(len, parts)))
    if common < 3:
        raise ConfigInvalid("paths of one DataFrame are of one store; union several DataFrames", operation="configure")
    globs = []
    for url in urls:
        below = literal_glob("/".join(url.root.split("/")[common:])).replace(",", "[,]")
        globs += [f"{below}/{url.glob}".lstrip("/")] if url.glob is not None else [below, f"{below}/**".lstrip("/")]
    root = "/".join(parts[0][:common])
    return SourceUrl(f"{root}/" if root.endswith("//") else root, "{" + ",".join(filter(None, globs)) + "}")


def directory_url(text: str, *, option: str) -> str:
    """A URL as given, or ``file://`` for a local path, made absolute. ``ConfigInvalid`` where nothing could work."""
    if not text.strip():
        raise ConfigInvalid(
            f"the option {option} is empty; it names a URL such as s3://bucket/prefix", operation="configure"
        )
    if _has_credentials(text):
        # Spark shows paths in plans and logs, and they may have bearer credentials.
        raise ConfigInvalid(
            f"the option {option} has a user or a query in its URL; give credentials as options",
            operation="configure",
        )
    if "://" in text:
        scheme, rest = split_uri(text)
        return f"{scheme}://{rest}"
    if _SCHEME.match(text) and not text.startswith("file:"):
        shown = printable(redact(text))
        raise ConfigInvalid(f"{option}={shown!r} is neither a URL with :// nor a local path", operation="configure")
    path = os.path.abspath(text.removeprefix("file:"))
    return f"file://{path}/" if text.endswith("/") and path != "/" else f"file://{path}"


def _has_credentials(text: str) -> bool:
    """Whether a user, or over HTTP a query, is in a URL of any scheme, also in an incomplete one."""
    url = _SCHEME.match(text)
    if url is None:
        return False
    scheme, rest = url[0].lower(), text[url.end() :].removeprefix("//")
    authority = rest.partition("/")[0]
    if scheme == "file:" and not text[url.end() :].startswith("//"):
        return False
    # A secret may have a slash in it, and no name of a bucket has a colon.
    return (
        "@" in authority
        or ("@" in rest and ":" in authority and scheme in ("s3:", "s3a:", "s3n:") and not authority.startswith("arn:"))
        or ("?" in rest and scheme in ("http:", "https:"))
    )


def name_filter(glob: str | None, file_name: str) -> str:
    """``glob`` (over paths) and a glob over file names as one. ``ConfigInvalid`` if one glob cannot say both."""
    if "/" in file_name:
        raise ConfigInvalid(
            f"pathGlobFilter={file_name!r} has a slash, but it is for names of files; put directories into the path",
            operation="configure",
        )
    if glob is None:
        return f"**/{file_name}"
    if len(globs := alternatives(glob)) > 1:
        names = [compile_glob(name) for name in alternatives(file_name)]
        lasts = [(one, one.rpartition("/")[2]) for one in globs]
        kept = [
            name_filter(one, file_name) if has_wildcard(last) else one
            for one, last in lasts
            if has_wildcard(last) or any(name.fullmatch(last) for name in names)
        ]
        return "{" + ",".join(kept) + "}"
    directory, separator, last = glob.rpartition("/")
    if last == "*":
        return f"{directory}{separator}{file_name}"
    if last == "**":
        return f"{directory}{separator}**/{file_name}"
    raise ConfigInvalid(
        f"the path ends with the glob {last!r} and pathGlobFilter={file_name!r} is another; give one of them",
        operation="configure",
    )


def _split_root(scheme: str, rest: str) -> tuple[str, str, str]:
    """The part without globs (a bucket, a host, the name of a memory store), the slash, and the path."""
    if scheme == "file":
        return "", "/", rest.lstrip("/")
    head, _, path = rest.partition("/")
    if has_wildcard(head):
        raise ConfigInvalid(f"there is a wildcard before the path of {scheme}://{head}", operation="configure")
    return head, "/", path


def _check_glob(glob: str, option: str) -> None:
    if re.search(r"\{[^{}]*,[^{}]*\}", glob):
        raise ConfigInvalid(
            f"{option}: alternatives in braces are not known in {glob!r}; there are * ? ** and sets such as [ab]",
            operation="configure",
        )


# --- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The options of one source, in groups.

    ``url`` is the user's, and is stored in the state. ``operator`` are options of ``Operator.from_uri`` for the source,
    ``state_operator`` for the state, and so on, each for its own location; they may hold literal keys, since operators
    are made in other processes. No repr shows them. ``left_out`` says why keys of the session are not among them.
    ``file_schema`` is the JSON of all fields of the files, where the user's schema has only some. ``is_inferred`` says
    that the policy for unknown fields was chosen because the schema was inferred. ``has_zone`` says that the zone of
    ``formats`` is the user's, by the option ``timeZone``, and not a session's.
    """

    url: str
    location: SourceUrl
    operator: Mapping[str, Any] = field(default_factory=dict, repr=False)
    state_operator: Mapping[str, Any] = field(default_factory=dict, repr=False)
    attach_operator: Mapping[str, Any] = field(default_factory=dict, repr=False)
    quarantine_operator: Mapping[str, Any] = field(default_factory=dict, repr=False)
    left_out: str | None = None
    listing: ListOptions = field(default_factory=ListOptions)
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
    partitioning: PartitionOptions = field(default_factory=PartitionOptions)
    formats: FormatOptions = field(default_factory=FormatOptions)
    failures: FailureOptions = field(default_factory=FailureOptions)
    reading: ReadOptions = field(default_factory=ReadOptions)
    clean: CleanSource = "off"
    clean_destination: str | None = None
    state_location: str | None = None
    attach_to: str | None = None
    quarantine_location: str | None = None
    columns: tuple[str, ...] | None = None
    file_schema: str | None = None
    metadata_columns: tuple[str, ...] = ()
    push_filters: bool = False
    allow_empty: bool = False
    requests_per_second: float | None = None
    is_inferred: bool = False
    has_zone: bool = False

    @property
    def quarantines(self) -> bool:
        """Whether files that are left out are written down."""
        skips_records = self.failures.on_corrupt_record == "skip"
        return "quarantine" in self.failures.policies.values() or (
            skips_records and (self.quarantine_location is not None or self.clean != "off")
        )


Groups = dict[str, dict[str, Any]]

# Each process that reads imports this module for its settings.
set_zone_advice(
    "give the option timeZone, or call aioprefetch.spark.register(spark), which hands over spark.sql.session.timeZone"
)

# Properties that every new table of Spark's catalog has. For its rows the catalog asks without any options.
_OF_CATALOG = frozenset({"owner", "provider"})
_NO_TABLES = (
    "tables of the catalog (CREATE TABLE ... USING aioprefetch) hand no options to Python sources as of Spark 4.3, not "
    "even a path: use CREATE TEMPORARY VIEW name USING aioprefetch OPTIONS (path '...')"
)


def parse_options(options: Mapping[str, str], session: SessionSettings | None = None) -> SourceSettings:
    """The settings for ``options``, with the settings in ``session`` behind them.

    ``ConfigInvalid`` names an unknown option, with the nearest one, or an invalid value.
    """
    _check_catalog(options)
    texts, open_file = _split(options)
    groups = _parsed(texts)
    if groups["source"].pop("parser", "arrow") != "arrow":
        raise ConfigInvalid(
            'format("aioprefetch") has Arrow\'s parsers: call aioprefetch.spark.read(spark, url, parser="spark"), or '
            "stream",
            operation="configure",
        )
    if session is not None:
        groups["format"]["exact_case"] = session.exact_case
        if session.time_zone is not None:
            groups["format"].setdefault("time_zone", session.time_zone)
    groups["format"].setdefault("infer_types", False)  # As in Spark: without inferSchema columns of CSV are strings.
    for name in ("modified_after", "modified_before"):
        if name in groups["list"]:
            groups["list"][name] = in_zone(groups["list"][name], groups["format"].get("time_zone"))
    source = groups["source"]
    if "path" not in source:
        why = "no path is given: load() takes a URL such as s3://bucket/prefix"
        raise ConfigInvalid(why if texts else f"{why}; {_NO_TABLES}", operation="configure")
    paths = json.loads(source["path"]) if source["path"].startswith('["') else [source["path"]]
    location = joint_url(paths)
    if "name_filter" in source:
        location = _filtered(location, source["name_filter"])
    state = _optional_directory(source.get("state_location"), "stateLocation")
    quarantine = _optional_directory(source.get("quarantine_location"), "quarantineLocation")
    attach_to = _optional_directory(source.get("attach_to"), "attachTo")
    urls = (location.root, state, attach_to, quarantine)
    places = Places(texts, session)
    places.check(SourceUrl(url) for url in urls if url is not None)
    settings = SourceSettings(
        url=directory_url(paths[0], option="path") if len(paths) == 1 else f"{location.root}/{location.glob}",
        location=location,
        operator=places.options(location.root),
        state_operator=places.options(state),
        attach_operator=places.options(attach_to),
        quarantine_operator=places.options(quarantine),
        left_out=places.left_out(urls),
        listing=ListOptions(glob=location.glob, **groups["list"]),
        admission=AdmissionOptions(**groups["admission"]),
        partitioning=PartitionOptions(**{"slots": _slots(session), **groups["partition"]}),
        formats=FormatOptions(**groups["format"]),
        failures=FailureOptions(**groups["failure"]),
        reading=ReadOptions(**groups["read"], open_file=open_file),
        state_location=state,
        attach_to=attach_to,
        quarantine_location=quarantine,
        columns=source.get("columns"),
        file_schema=source.get("file_schema"),
        metadata_columns=source.get("metadata_columns", ()),
        push_filters=source.get("push_filters", False),
        allow_empty=source.get("allow_empty", False),
        requests_per_second=source.get("requests_per_second"),
        has_zone="timezone" in texts,
        **_cleaning(source),
    )
    _check_places(settings)
    _check_cleaning(settings)
    return settings


def _check_catalog(options: Mapping[str, str]) -> None:
    """``ConfigInvalid`` for calls of Spark's catalog: for a new table it passes properties of its own."""
    if {name.lower() for name in options} >= _OF_CATALOG:
        raise ConfigInvalid(_NO_TABLES, operation="configure")


def _split(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options by name in lower case, and keys of ``openFile()`` under the prefixes of ``propagate``."""
    texts: dict[str, str] = {}
    open_file: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        prefix = next((start for start in OPEN_FILE_PREFIXES if lower.startswith(start)), None)
        if prefix is not None:
            open_file[OPEN_FILE_PREFIXES[prefix] + lower.removeprefix(prefix)] = value
        else:
            texts["path" if lower == "paths" else lower] = value
    if "sep" in texts and "delimiter" in texts:
        raise ConfigInvalid("sep and delimiter are one option under two names; give one", operation="configure")
    return texts, open_file


def _parsed(texts: Mapping[str, str]) -> Groups:
    groups: Groups = {group: {} for group in (*GROUPS, "parser")}
    for name, text in texts.items():
        if name in SOURCE_OPTIONS:
            option = SOURCE_OPTIONS[name]
            groups[option.group][option.row.target] = value_of(option.name, option.row, text)
    mode = groups["source"].pop("mode", None)
    if mode is not None:
        if "on_corrupt_record" in groups["failure"]:
            raise ConfigInvalid("mode and onCorruptRecord are one option; give one of them", operation="configure")
        groups["failure"]["on_corrupt_record"] = mode
    for name, policy in (("ignore_missing_files", "on_missing"), ("ignore_corrupt_files", "on_corrupt")):
        if groups["source"].pop(name, False):
            groups["failure"].setdefault(policy, "skip")
    formats = groups["format"]
    zone = groups["source"].pop("session_time_zone", None)
    if zone is not None:
        formats.setdefault("time_zone", zone)
    if formats.get("format") not in RECORD_FORMATS.values():
        check_arrow(texts, groups["failure"])
    if "format" in formats:
        # These two hold for files of any format.
        without = {"compression"} if formats.get("compression") in ("auto", "none") else set()
        check_format(texts.keys() - without, formats["format"])
    return groups


def _filtered(location: SourceUrl, file_name: str) -> SourceUrl:
    glob = name_filter(location.glob, file_name)
    return SourceUrl(location.root, glob)


def _slots(session: SessionSettings | None) -> int:
    """The number of concurrent tasks; a guess where no session is known."""
    return (session.slots if session is not None else None) or os.cpu_count() or 2


def _optional_directory(text: str | None, option: str) -> str | None:
    """The URL of a directory, without a slash at its end."""
    if text is None:
        return None
    location = source_url(text.rstrip("/") + "/", option=option)
    if location.glob is not None:
        raise ConfigInvalid(f"{option}={text!r} has a wildcard; it is one directory", operation="configure")
    return location.root


def _check_places(settings: SourceSettings) -> None:
    """The source must not read its own output, and quarantine needs a location."""
    if settings.quarantines and settings.state_location is None and settings.quarantine_location is None:
        raise ConfigInvalid(
            "a policy is quarantine: give the option quarantineLocation, a directory for the list of such files",
            operation="configure",
        )
    selection = Selection(settings.listing.glob, hidden_files=settings.listing.hidden_files)
    for option, place in (
        ("stateLocation", settings.state_location),
        ("quarantineLocation", settings.quarantine_location),
    ):
        below = None if place is None else path_below(settings.location.root, place)
        if would_be_read(below, selection.takes):
            raise ConfigInvalid(
                f"{option} lies within the path that is read: what is written there would be read. Choose a place "
                "outside, or one whose name begins with _",
                operation="configure",
            )


def _cleaning(source: Mapping[str, Any]) -> dict[str, Any]:
    clean = source.get("clean", "off")
    destination = _optional_directory(source.get("clean_destination"), "cleanSource.moveDestination")
    if (clean == "move") != (destination is not None):
        raise ConfigInvalid("cleanSource=move and cleanSource.moveDestination go together", operation="configure")
    return {"clean": clean, "clean_destination": destination}


def _check_cleaning(settings: SourceSettings) -> None:
    """``ConfigInvalid`` unless it is certain that the records of a cleaned file were read by all readers."""
    if settings.clean == "off":
        return
    policies = settings.failures.policies.items()
    skipping = next((f"on{reason.capitalize()}" for reason, policy in policies if policy == "skip"), None)
    if skipping is not None:
        raise ConfigInvalid(
            f"cleanSource={settings.clean} does not go with {skipping}=skip: no record would say which files were left"
            f" out, and they would be cleaned unread. Choose {skipping}=quarantine, which leaves them",
            operation="configure",
        )
    if settings.quarantines and settings.quarantine_location is not None:
        raise ConfigInvalid(
            f"cleanSource={settings.clean} looks for quarantined files in the state: leave quarantineLocation out",
            operation="configure",
        )
    if settings.attach_to is not None:
        raise ConfigInvalid(
            f"cleanSource={settings.clean} does not go with attachTo: the source that is followed, and others that "
            "follow it, may not have read the file",
            operation="configure",
        )


def with_location(settings: SourceSettings, location: SourceUrl) -> SourceSettings:
    """The settings with another location, such as the directory of one object."""
    return replace(settings, location=location, listing=replace(settings.listing, glob=location.glob))


# --- places -----------------------------------------------------------------------------------------------------------

# S3A's default endpoint.
_CENTRAL = "https://s3.amazonaws.com"
_PORTS = {"http": 80, "https": 443}


class Places:
    """The options of the user and of the session, for one location after another.

    ``texts`` are options by name in lower case.
    """

    def __init__(self, texts: Mapping[str, str], session: SessionSettings | None) -> None:
        self._texts = {name: text for name, text in texts.items() if name not in SOURCE_OPTIONS}
        self._session = session

    def check(self, locations: Iterable[SourceUrl]) -> None:
        """Raise ``ConfigInvalid`` for an option that no location has."""
        schemes = list(dict.fromkeys(_scheme(location) for location in locations))
        for name in self._texts:
            if any(name in store_texts(scheme) for scheme in schemes):
                continue
            row = store_options_of_all().get(name)
            if row is None:
                raise unknown_option(name, schemes)
            named = " and ".join(f"{scheme}://" for scheme in schemes)
            raise ConfigInvalid(f"the option {row.spark} means nothing for {named}", operation="configure")

    def options(self, url: str | None) -> dict[str, Any]:
        """The options of ``operator_at`` for a URL; none without a URL."""
        if url is None:
            return {}
        location = SourceUrl(url)
        behind = {} if self._is_elsewhere(location) else self._of_session(location)
        if CREDENTIAL_NAMES & self._texts.keys():
            behind = {name: text for name, text in behind.items() if name not in CREDENTIAL_NAMES}
        rows, texts = store_texts(_scheme(location)), {**behind, **self._texts}
        return {
            rows[name].name: value_of(rows[name].spark, rows[name], text)
            for name, text in texts.items()
            if name in rows
        }

    def left_out(self, urls: Iterable[str | None]) -> str | None:
        """The reason why keys of the session are not used for one of the URLs; ``None`` if none are left out."""
        if CREDENTIAL_NAMES & self._texts.keys():
            return None
        for location in (SourceUrl(url) for url in urls if url is not None):
            texts = self._of_session(location)
            if CREDENTIAL_NAMES & texts.keys() and self._is_elsewhere(location):
                theirs = redact(texts.get("endpointurl", _CENTRAL))
                return (
                    f"the session's fs.s3a settings are of the endpoint {theirs}, and endpointUrl is "
                    f"{redact(self._texts['endpointurl'])}: their keys were not used. Give accessKeyId and "
                    "secretAccessKey, a profile, or no endpointUrl"
                )
        return None

    def _of_session(self, location: SourceUrl) -> Mapping[str, str]:
        bucket = location.bucket
        return {} if bucket is None or self._session is None else self._session.options(bucket)

    def _is_elsewhere(self, location: SourceUrl) -> bool:
        """Whether the user names another endpoint than the session, whose settings and keys do not count there."""
        endpoint = self._texts.get("endpointurl")
        return endpoint is not None and not is_same_endpoint(endpoint, self._of_session(location).get("endpointurl"))


def is_same_endpoint(url: str, other: str | None) -> bool:
    """Whether two URLs are of one endpoint: case, a default port and a slash at the end do not count."""
    return _normal(url) == _normal(other or _CENTRAL)


def _normal(url: str) -> tuple[object, ...]:
    parts = urlsplit(url.strip())
    try:
        port = parts.port
    except ValueError:
        return (url,)
    return parts.scheme, parts.hostname, port or _PORTS.get(parts.scheme), parts.path.rstrip("/"), parts.query


def _scheme(location: SourceUrl) -> str:
    return split_uri(location.root)[0]
