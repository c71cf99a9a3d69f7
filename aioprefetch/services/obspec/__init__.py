"""Stores that speak obspec's protocols: obstore's Azure, GCS and S3 stores, and any other that has their methods."""

from aioprefetch.services.obspec.recipe import ObspecStore

__all__ = ["ObspecStore"]
