"""Files as other libraries write them, and how they are read back by hand.

`lance_files`, `lance_v20_*`, `lance_v21_*`: pylance's, whole and page by page. `column_file`, `dataset_files`: those of
Parquet by pyarrow. `packed_files`: what each compression makes of bytes.
"""
