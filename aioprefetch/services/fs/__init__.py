"""Files under one directory: a confined walk to each file, positioned reads off the loop, atomic writes."""

from aioprefetch.services.fs.recipe import Fs

__all__ = ["Fs"]
