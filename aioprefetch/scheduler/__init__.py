"""Scheduling apart from decoding: one loop plans pages, a service reads them by priority, another loop decodes batches.

Format-independent. The loops come from the Lance decoder (``lance-encoding/src/decoder.rs``, the document in its
docs); their interface for formats is ``pages``.
"""
