"""Objects behind plain HTTP servers, to be read: ranges where the server has them, and a way around where not."""

from aioprefetch.services.http.recipe import Http

__all__ = ["Http"]
