"""What stands in this repository: `source_tree` and its imports, `doc_pages`, `reliability_page`, `example_scripts`."""
