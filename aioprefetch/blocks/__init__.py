"""Where bytes live: blocks in memory, their fetches, their eviction. Knows no store and no reader."""
