"""Parquet files that are one table: a directory, the matches of a glob, a list.

``files`` finds them, and has the columns that their paths name. ``scan`` opens the next ones while one is decoded.
``aioprefetch.parquet.columns`` has the schema that they share, and makes their batches of it.
"""
