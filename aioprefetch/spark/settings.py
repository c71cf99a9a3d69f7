"""All that is set of one source: plain data that travels by pickle, and shows no secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aioprefetch.source.options import (
    AdmissionOptions,
    CleanSource,
    FailureOptions,
    FormatOptions,
    ListOptions,
    PartitionOptions,
    ReadOptions,
)
from aioprefetch.spark.source_url import SourceUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The options of one source, in the groups of those who need them.

    ``url`` is what the user gave, and what a state remembers. ``operator`` are options of ``Operator.from_uri`` for
    the source, ``state_operator`` for the state, and so on, each for its own place; they may hold literal keys, since
    what is live is made in other processes than the one that was given them. They are in no repr. ``left_out`` says why
    keys of the session are not among them. ``file_schema`` is the JSON of all fields that the
    files have, where the user's schema is only some of them. ``is_inferred`` says that what becomes of unknown fields
    was chosen for the user, because the schema was inferred.
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
    is_inferred: bool = False

    @property
    def quarantines(self) -> bool:
        """Whether files that are given up are written down."""
        failures = self.failures
        return "quarantine" in (failures.on_missing, failures.on_changed, failures.on_corrupt)
