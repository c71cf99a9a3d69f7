"""A bucket as a source of data: files listed lazily, delivered once each, read as record batches.

Independent of engines.

``list`` finds files page by page, ``fetch`` plans batches of them, ``state`` makes plans and known files durable,
``reading`` and ``formats`` turn files into record batches. An engine (``aioprefetch.spark``) asks for offsets and runs
the work. After RisingWave's "Refined S3 Source".
"""
