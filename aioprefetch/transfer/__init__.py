"""Objects from one place to another: single ones, directories and globs, between any two stores and local files."""
