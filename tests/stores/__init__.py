"""Stores, servers and disks that stand in for real ones: tests of several folders decide what these do.

| module | its question |
| --- | --- |
| `gated_reader` | what does a reader ask of its store, and what comes of a response that is late, short or wrong? |
| `disk_tier`, `failing_disk` | the same with a disk tier below it, and with each system call of the disk failing |
| `computed_store` | how many GETs of which ranges, over near and far stores, for objects of any size? |
| `stacks`, `arrow_stores` | does each store keep its promises, under each stack, as a file system of Arrow? |
| `verb_layer`, `layer_stack`, `part_store` | what does a layer or an upload do when the store below it has a fault? |
| `faulty_bucket`, `key_server`, `directory_bucket` | what does a verb do when S3's responses are spoiled or bent? |
| `scan_service`, `pretended_format` | what does the scheduler send, and when does it decode? |
| `wire` | does a connection parse and end well, driven by hand? |
| `raw_server`, `tls_servers`, `certificates` | and over a socket, to the byte? over TLS? |
| `simulated_bucket`, `dict_index`, `computed_listing` | is what a lister reports true to a bucket that changes? |
| `dict_store`, `source_files` | does a service of another author work? what does a batch of the source ask for? |
| `stored_object`, `planted_keys` | what do libraries ask for? what becomes of keys that no verb of ours writes? |
| `rclone_server`, `s3_options` | what does another implementation of S3 say? and how is any opened? |
"""
