"""The options of ``read`` and ``stream``, for type checkers: nothing loads this module at run time.

``python -m tests.repository.option_files`` makes it from the rows. Names are as in docs/reference/spark-options.md,
in snake case. At run time they may also be written as there, and keys of ``openFile()`` are taken too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from aioprefetch.operator.options import BlockOptions, LimitOptions
from aioprefetch.ranges import ByteCount
from aioprefetch.services.uri_options import StoreTexts
from aioprefetch.source.options import Assign, CleanSource, OnCorruptRecord, OnFailure, Overwrites, UnknownFields

# generated: types


class SourceOptions(StoreTexts, LimitOptions, BlockOptions, total=False):
    """The options of batches and of streams."""

    path_glob_filter: str | None
    quarantine_location: str | None
    file_schema: str | None
    metadata_columns: str | Sequence[str] | None
    requests_per_second: float | None
    mode: str | None
    recursive_file_lookup: Literal[True] | None
    merge_schema: Literal[True] | None
    ignore_missing_files: bool | None
    ignore_corrupt_files: bool | None
    hidden_files: bool | None
    list_retry_seconds: float | None
    target_partition_bytes: ByteCount | None
    max_partitions: int | None
    split_files: bool | None
    task_slots: int | None
    compression: Literal["auto", "none", "gzip", "zstd", "snappy"] | None
    encoding: str | None
    header: bool | None
    sep: str | None
    quote: str | None
    escape: str | None
    null_value: str | None
    comment: str | None
    whole_text: bool | None
    multi_line: bool | None
    time_zone: str | None
    line_sep: str | None
    infer_schema: bool | None
    infer_sample_files: int | None
    infer_sample_bytes: ByteCount | None
    unknown_fields: UnknownFields | None
    on_missing: OnFailure | None
    on_changed: OnFailure | None
    on_corrupt: OnFailure | None
    on_corrupt_record: OnCorruptRecord | None
    on_unreadable: OnFailure | None
    batch_rows: int | None
    files_in_flight: int | None
    bytes_in_flight: ByteCount | None
    char_to_escape_quote_escaping: str | bool | float | None
    unescaped_quote_handling: str | bool | float | None
    empty_value: str | bool | float | None
    nan_value: str | bool | float | None
    positive_inf: str | bool | float | None
    negative_inf: str | bool | float | None
    max_columns: str | bool | float | None
    max_chars_per_column: str | bool | float | None
    ignore_leading_white_space: str | bool | float | None
    ignore_trailing_white_space: str | bool | float | None
    enforce_schema: str | bool | float | None
    prefer_date: str | bool | float | None
    date_format: str | bool | float | None
    timestamp_format: str | bool | float | None
    timestamp_ntz_format: str | bool | float | None
    time_format: str | bool | float | None
    enable_date_time_parsing_fallback: str | bool | float | None
    locale: str | bool | float | None
    column_name_of_corrupt_record: str | bool | float | None
    sampling_ratio: str | bool | float | None
    single_variant_column: str | bool | float | None
    primitives_as_string: str | bool | float | None
    prefers_decimal: str | bool | float | None
    drop_field_if_all_null: str | bool | float | None
    allow_comments: str | bool | float | None
    allow_unquoted_field_names: str | bool | float | None
    allow_single_quotes: str | bool | float | None
    allow_numeric_leading_zeros: str | bool | float | None
    allow_backslash_escaping_any_character: str | bool | float | None
    allow_unquoted_control_chars: str | bool | float | None
    allow_non_numeric_numbers: str | bool | float | None
    quote_all: str | bool | float | None
    escape_quotes: str | bool | float | None
    ignore_null_fields: str | bool | float | None
    delimiter: str | None


class BatchOptions(SourceOptions, total=False):
    """The options of ``read``."""

    push_filters: bool | None
    allow_empty: bool | None
    modified_after: str | None
    modified_before: str | None


class StreamOptions(SourceOptions, total=False):
    """The options of ``stream``, which places the state."""

    attach_to: str | None
    clean_source: CleanSource | None
    clean_source_move_destination: str | None
    list_interval_seconds: float | None
    sweep_pages_per_trigger: int | None
    list_ahead_pages: int | None
    overwrites: Overwrites | None
    forget_after_seconds: float | None
    include_existing_files: bool | None
    max_files_per_trigger: int | None
    max_bytes_per_trigger: ByteCount | None
    max_rows_per_trigger: int | None
    assign: Assign | None


# end of generated
