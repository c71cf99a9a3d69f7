"""Amazon S3 and services with its protocol: MinIO, Ceph, R2, GCS in its XML dialect, ..."""

from aioprefetch.services.s3.recipe import S3

__all__ = ["S3"]
