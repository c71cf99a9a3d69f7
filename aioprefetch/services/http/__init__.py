"""Objects behind plain HTTP servers, to be read, also where the server has no ranges."""

from aioprefetch.services.http.recipe import Http

__all__ = ["Http"]
