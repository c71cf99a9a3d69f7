"""Parquet files that are one table: a directory, the matches of a glob, a list.

``files`` finds them, ``partitions`` has the columns that their paths name, ``union`` the schema that they share,
``conform`` makes their batches of that schema, ``ahead`` opens the next ones while one is decoded, ``scan`` puts it
together.
"""
