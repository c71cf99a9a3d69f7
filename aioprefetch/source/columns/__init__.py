"""Columns of files made into those of one schema: names, types, filters and the union of schemas. Pure, on pyarrow."""
