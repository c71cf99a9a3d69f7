"""The settings of AWS, in variables or in a profile, that ask for what our own requests do not know. Pure, no I/O.

A recipe with one of them sends its requests through aiobotocore, which knows all of them
(``endpoint.why_aiobotocore``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from aioprefetch.lean_dataclass import dataclass
from aioprefetch.services.s3.aws_files import nested


def _is_true(value: str) -> bool:
    return value.strip().lower() == "true"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name for people, its variable, its place in a profile (``s3.`` for the block of S3 in it)."""

    name: str
    variable: str = ""
    entries: tuple[str, ...] = ()
    asks: Callable[[str], bool] = field(default=_is_true)


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
    Setting("a choice of payload signing", "", ("s3.payload_signing_enabled",), bool),
    Setting("signatures for several regions", "AWS_SIGV4A_SIGNING_REGION_SET", ("sigv4a_signing_region_set",), bool),
    Setting("another kind of signature", "AWS_AUTH_SCHEME_PREFERENCE", ("auth_scheme_preference",), bool),
    Setting("botocore's data from another folder", "AWS_DATA_PATH", ("data_path",), bool),
)
VARIABLES = tuple(setting.variable for setting in SETTINGS if setting.variable)


def asked_settings(values: Mapping[str, str], section: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the settings that these variables, or this section of a profile, ask for."""
    entries = {**section, **{f"s3.{name}": value for name, value in nested(section, "s3").items()}}
    return tuple(
        setting.name
        for setting in SETTINGS
        if any(
            setting.asks(value)
            for value in (values.get(setting.variable, ""), *(entries.get(entry, "") for entry in setting.entries))
        )
    )
