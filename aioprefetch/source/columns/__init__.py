"""Columns of files brought to one schema: names, types, filters and the union of schemas. Pure, on pyarrow."""
