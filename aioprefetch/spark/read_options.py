"""The options of ``read`` and ``stream``, for type checkers: nothing loads this module at run time.

Names are those of docs/reference/spark-options.md in snake case. At run time they may also be written as there, and
keys of ``openFile()`` are taken too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from aioprefetch.ranges import ByteCount
from aioprefetch.source.options import Assign, CleanSource, OnFailure, Overwrites, UnknownFields
from aioprefetch.values import Checksum

if TYPE_CHECKING:
    from aioprefetch.services.s3.options import AddressingStyle, Fallback, Signing

Names = str | Sequence[str]


class SourceOptions(TypedDict, total=False):
    """The options of batches and of streams; ``None`` is as good as none."""

    path_glob_filter: str | None
    quarantine_location: str | None
    metadata_columns: Names | None
    file_schema: str | None
    hidden_files: bool | None
    target_partition_bytes: ByteCount | None
    max_partitions: int | None
    split_files: bool | None
    task_slots: int | None
    # formats
    compression: Literal["auto", "none", "gzip", "zstd", "snappy"] | None
    header: bool | None
    sep: str | None
    delimiter: str | None
    quote: str | None
    escape: str | None
    null_value: str | None
    encoding: str | None
    time_zone: str | None
    multi_line: bool | None
    line_sep: str | None
    infer_schema: bool | None
    infer_sample_files: int | None
    infer_sample_bytes: ByteCount | None
    unknown_fields: UnknownFields | None
    # reading
    on_missing: OnFailure | None
    on_changed: OnFailure | None
    on_corrupt: OnFailure | None
    batch_rows: int | None
    files_in_flight: int | None
    bytes_in_flight: ByteCount | None
    # the store, by the names of ``Operator.from_uri``
    endpoint_url: str | None
    region: str | None
    access_key_id: str | None
    secret_access_key: str | None
    session_token: str | None
    fallback: Fallback | None
    profile: str | None
    anonymous: bool | None
    addressing_style: AddressingStyle | None
    signing: Signing | None
    ca_bundle: str | None
    proxies: Mapping[str, str] | None
    allow_http: bool | None
    sse_customer_key: str | None
    request_payer: bool | None
    service_account: str | None
    service_account_key: str | None
    application_credentials: str | None
    account_name: str | None
    account_key: str | None
    sas_key: str | None
    tenant_id: str | None
    client_id: str | None
    client_secret: str | None
    use_emulator: bool | None
    headers: Mapping[str, str] | None
    auth: str | None
    follow_redirects: bool | None
    decode: bool | None
    follow_symlinks: bool | None
    memory_bytes: ByteCount | None
    block_bytes: ByteCount | None
    prefetch_blocks: int | None
    concurrency: int | None
    disk_cache: str | None
    budget_wait_seconds: float | None
    drain_bytes: ByteCount | None
    connect_timeout_seconds: float | None
    read_timeout_seconds: float | None
    part_bytes: ByteCount | None
    checksum: Checksum | None
    attempts_max: int | None
    retry_seconds: float | None


class BatchOptions(SourceOptions, total=False):
    """The options of ``read``."""

    push_filters: bool | None
    allow_empty: bool | None


class StreamOptions(SourceOptions, total=False):
    """The options of ``stream``, which places the state by itself."""

    attach_to: str | None
    clean_source: CleanSource | None
    clean_source_move_destination: str | None
    list_interval_seconds: float | None
    sweep_pages_per_trigger: int | None
    list_retry_seconds: float | None
    list_ahead_pages: int | None
    forget_after_seconds: float | None
    overwrites: Overwrites | None
    max_files_per_trigger: int | None
    max_bytes_per_trigger: ByteCount | None
    max_rows_per_trigger: int | None
    assign: Assign | None
