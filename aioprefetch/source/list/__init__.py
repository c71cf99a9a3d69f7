"""How files are found: page by page from a cursor on, compared with the known files. Nothing is written here."""
