"""Settings of Hadoop's S3A (``fs.s3a.*``) as options of a source: one place for endpoint and keys, Spark's own.

``register(spark)`` reads them from the session, in the driver, and they travel inside the pickled data source, never
as options of a DataFrame, so no plan shows them. Without it (a data source that Spark found by itself) the planning
processes see no session: there, files alone count, ``spark-defaults.conf`` and ``core-site.xml``. Settings made in
code (``SparkSession.builder.config``) or by ``spark-submit --conf`` need ``register``.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from aioprefetch.operator.from_uri import store_options

# The assumed number of concurrent tasks where the settings of a cluster set no maximum.
SLOTS_UNBOUND = 64
# The setting for the zone of times without one, and whether names of columns match in their exact case alone.
TIME_ZONE = "spark.sql.session.timeZone"
CASE_SENSITIVE = "spark.sql.caseSensitive"
# The key for all buckets without settings of their own.
ALL_BUCKETS = ""

_SPARK_PREFIX = "spark.hadoop."
_PREFIX = "fs.s3a."
_BUCKET_PREFIX = "fs.s3a.bucket."
# S3A's default endpoint.
_CENTRAL_ENDPOINT = "s3.amazonaws.com"
_ENDPOINT_REGION = re.compile(r"s3[.-](?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com")
_KEY_PROVIDERS = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
_PROPERTIES_LINE = re.compile(r"\s*([^\s=:#!][^\s=:]*)\s*[\s=:]\s*(.*?)\s*")
# Properties of S3A that say something of others.
_MORE_PROPERTIES = ("connection.ssl.enabled", "aws.credentials.provider", "encryption.algorithm")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of a session: text options (names in lower case) by bucket, concurrent tasks, zone, case."""

    by_bucket: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    slots: int | None = None
    time_zone: str | None = None
    exact_case: bool = False

    def options(self, bucket: str) -> Mapping[str, str]:
        """The options for a bucket."""
        return self.by_bucket.get(bucket, self.by_bucket.get(ALL_BUCKETS, {}))


def settings_in(
    entries: Mapping[str, str], *, slots: int | None = None, time_zone: str | None = None, exact_case: bool = False
) -> SessionSettings:
    """The settings in ``fs.s3a.*`` entries. Those with ``spark.hadoop.`` before them win, as in Hadoop."""
    ordered = sorted(entries.items(), key=lambda entry: not entry[0].startswith(_SPARK_PREFIX))
    plain = {name.removeprefix(_SPARK_PREFIX): value.strip() for name, value in ordered if value}
    shared = {name: plain[_PREFIX + name] for name in _properties() if _PREFIX + name in plain}
    buckets: dict[str, dict[str, str]] = {}
    for name, value in plain.items():
        for bucket, prop in _of_bucket(name):
            buckets.setdefault(bucket, {})[prop] = value
    by_bucket = {bucket: as_options(_merged(shared, own)) for bucket, own in buckets.items()}
    if shared:
        by_bucket[ALL_BUCKETS] = as_options(shared)
    return SessionSettings(by_bucket, slots, time_zone, exact_case)


@functools.cache
def _words() -> Mapping[str, str]:
    """The properties of S3A that are options of ours, by the names that these have as options of a source."""
    return {word: row.spark.lower() for row in store_options("s3").values() for word in row.words("hadoop")}


def _properties() -> tuple[str, ...]:
    """The properties that count, for all buckets and after the name of a bucket."""
    return (*_words(), *_MORE_PROPERTIES)


def as_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of S3A, without their prefix, as options of a source."""
    return {**_store_options(properties), **_credential_options(properties)}


def from_session(spark: Any) -> SessionSettings:
    """The settings of a session, classic or Connect. Settings that cannot be read there count as unset."""
    entries = {name: value for name, value in _session_entries(spark) if isinstance(value, str)}
    exact_case = spark.conf.get(CASE_SENSITIVE) == "true"
    return settings_in(entries, slots=_slots(spark), time_zone=spark.conf.get(TIME_ZONE) or None, exact_case=exact_case)


def from_files(environment: Mapping[str, str] | None = None) -> SessionSettings:
    """The settings in ``spark-defaults.conf`` (``SPARK_CONF_DIR``) and ``core-site.xml`` (``HADOOP_CONF_DIR``)."""
    variables = os.environ if environment is None else environment
    entries: dict[str, str] = {}
    time_zone, exact_case = None, False
    if hadoop := variables.get("HADOOP_CONF_DIR"):
        entries |= _site_entries(Path(hadoop) / "core-site.xml")
    if spark := variables.get("SPARK_CONF_DIR"):
        own = _default_entries(Path(spark) / "spark-defaults.conf")
        time_zone, exact_case = own.pop(TIME_ZONE, None), own.pop(CASE_SENSITIVE, "") == "true"
        entries |= {name.removeprefix(_SPARK_PREFIX): value for name, value in own.items()}
    return settings_in(entries, time_zone=time_zone, exact_case=exact_case)


def _of_bucket(name: str) -> Iterator[tuple[str, str]]:
    """Bucket and property of ``fs.s3a.bucket.NAME.PROPERTY``. Names of buckets may have dots."""
    if name.startswith(_BUCKET_PREFIX):
        rest = name.removeprefix(_BUCKET_PREFIX)
        fitting = [prop for prop in _properties() if rest.endswith("." + prop)]
        if fitting:
            prop = max(fitting, key=len)
            yield rest.removesuffix("." + prop), prop


def _merged(shared: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Properties of a bucket, over properties of all buckets, and no session token beside keys of another origin."""
    merged = {**shared, **own}
    if "access.key" in own and "session.token" not in own:
        merged.pop("session.token", None)
    return merged


def _store_options(properties: Mapping[str, str]) -> dict[str, str]:
    words, options = _words(), dict[str, str]()
    endpoint = properties.get("endpoint", "")
    if endpoint and endpoint != _CENTRAL_ENDPOINT:
        scheme = "http" if _is(properties, "connection.ssl.enabled", "false") else "https"
        url = options[words["endpoint"]] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        if url.startswith("http://"):
            options["allowhttp"] = "true"  # The configured endpoint is trusted by Spark's own requests, too.
        if in_host := _ENDPOINT_REGION.search(endpoint):
            options[words["endpoint.region"]] = in_host[1]
    if properties.get("endpoint.region"):
        options[words["endpoint.region"]] = properties["endpoint.region"]
    if "path.style.access" in properties:
        options[words["path.style.access"]] = "path" if _is(properties, "path.style.access", "true") else "auto"
    if _is(properties, "requester.pays.enabled", "true"):
        options[words["requester.pays.enabled"]] = "true"
    if properties.get("encryption.algorithm") == "SSE-C" and properties.get("encryption.key"):
        options[words["encryption.key"]] = properties["encryption.key"]
    return options


def _credential_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Keys, or no keys at all. Other providers use sources that our own chain has: environment, profile, instance."""
    providers = properties.get("aws.credentials.provider", "")
    if "AnonymousAWSCredentialsProvider" in providers and not any(name in providers for name in _KEY_PROVIDERS):
        return {"anonymous": "true"}
    if providers and not any(name in providers for name in _KEY_PROVIDERS):
        return {}
    keys = ("access.key", "secret.key", "session.token")
    options = {_words()[name]: properties[name] for name in keys if properties.get(name)}
    return options if properties.get(keys[0]) and properties.get(keys[1]) else {}


def _is(properties: Mapping[str, str], name: str, value: str) -> bool:
    return properties.get(name, "").lower() == value


def _session_entries(spark: Any) -> Iterator[tuple[str, Any]]:
    """All settings of S3A of a session: the JVM's Hadoop configuration first, then the session's own."""
    java = getattr(spark, "_jsparkSession", None)
    if java is not None:
        hadoop = java.sessionState().newHadoopConf()
        for name, value in _entries(spark, hadoop.getPropsWithPrefix(_PREFIX)).items():
            is_known = name in _properties() or name.startswith(_BUCKET_PREFIX.removeprefix(_PREFIX))
            if is_known and "core-default.xml" not in list(hadoop.getPropertySources(_PREFIX + name) or ()):
                yield _PREFIX + name, value
    settings = spark.conf.getAll if java is None else _entries(spark, java.conf().getAllAsJava())
    for name, value in settings.items():
        if name.removeprefix(_SPARK_PREFIX).startswith(_PREFIX):
            yield name, value


def _entries(spark: Any, entries: Any) -> dict[str, Any]:
    """A map of Java by one call to the JVM: entry by entry takes a tenth of a second in all."""
    mapper = spark._jvm.com.fasterxml.jackson.databind.ObjectMapper()
    loaded: dict[str, Any] = json.loads(mapper.writeValueAsString(entries))
    return loaded


def slots_of(settings: Mapping[str, str], parallelism: int | None) -> int | None:
    """The number of concurrent tasks, by settings of Spark and its scheduler; ``None`` if unknown.

    The scheduler of a cluster counts only the executors that run already, which at first may be none. So the maximum of
    the settings counts, and ``SLOTS_UNBOUND`` if they set none.
    """
    master = settings.get("spark.master", "")
    if re.fullmatch(r"local(\[.*\])?", master):
        return parallelism
    if mini := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master):
        return int(mini[1]) * int(mini[2])
    cores = _number(settings, "spark.executor.cores") or 1
    wanted = [(_number(settings, "spark.executor.instances") or 0) * cores, _number(settings, "spark.cores.max") or 0]
    if settings.get("spark.dynamicAllocation.enabled", "").lower() == "true":
        wanted.append((_number(settings, "spark.dynamicAllocation.maxExecutors") or 0) * cores)
    slots = max(wanted) // (_number(settings, "spark.task.cpus") or 1)
    if slots:
        return max(slots, parallelism or 0)
    return None if parallelism is None and not master else max(parallelism or 0, SLOTS_UNBOUND)


def _number(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _slots(spark: Any) -> int | None:
    """The number of concurrent tasks. A Connect session shows its settings alone."""
    context = None if getattr(spark, "_jsparkSession", None) is None else spark.sparkContext
    settings = spark.conf if context is None else context.getConf()
    return slots_of(settings, None if context is None else int(context.defaultParallelism))


def _default_entries(path: Path) -> dict[str, str]:
    """The entries of a properties file; none if it is missing or cannot be read."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    matches = (match for line in lines if (match := _PROPERTIES_LINE.fullmatch(line)))
    entries = {match[1]: match[2] for match in matches}
    others = (TIME_ZONE, CASE_SENSITIVE)
    return {name: text for name, text in entries.items() if name.startswith(_SPARK_PREFIX + _PREFIX) or name in others}


def _site_entries(path: Path) -> dict[str, str]:
    """The entries of a Hadoop file, without values that have a reference (``${...}``) in them."""
    try:
        root = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return {}
    pairs = ((element.findtext("name") or "", element.findtext("value") or "") for element in root.iter("property"))
    return {name: value for name, value in pairs if name.startswith(_PREFIX) and "${" not in value}
