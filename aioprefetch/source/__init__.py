"""A bucket as a source of data: files listed lazily, delivered once each, read as record batches. Knows no engine.

``list`` finds files page by page, ``state`` remembers what was planned, ``fetch`` cuts it into work and reads it. An
engine (``aioprefetch.spark``) asks for offsets and runs the work. After RisingWave's "Refined S3 Source".
"""
