"""Blocks in memory, their fetches and their eviction. Independent of stores and readers."""
