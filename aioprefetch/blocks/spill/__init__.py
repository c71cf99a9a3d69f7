"""Checked entry files, their LRU index and failure guard (shared with ``layers/lru_cache``), and the disk tier."""
