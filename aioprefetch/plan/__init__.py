"""Decisions of verbs, without I/O: names and patterns."""
