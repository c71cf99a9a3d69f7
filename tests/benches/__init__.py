"""The benches: what tests of two or more folders are built on, one bench a module.

| bench | its question |
| --- | --- |
| `gated_reader` | what does a reader ask of its store, and what comes of a response that is late, short or wrong? |
| `disk_tier`, `failing_disk` | the same with a disk tier below it, and with each system call of the disk failing |
| `computed_store` | how many GETs of which ranges, over near and far stores, for objects of any size? |
| `stacks` | does each store keep its promises, under each stack of layers? |
| `layer_stack` | what does a layer do when the store below it fails by plan? |
| `scan_service`, `pretended_format` | what does the scheduler send, and when does it decode? |
| `wire` | does a connection parse and end well, driven by hand? |
| `raw_server`, `tls_servers`, `certificates` | and over a socket, to the byte? over TLS? |
| `simulated_bucket`, `dict_index`, `computed_listing` | is what a lister reports true to a bucket that changes? |
| `source_files` | which requests does a batch of the source send, and what does it read? |
| `lance_files`, `lance_v20_*`, `lance_v21_*` | are Lance's files read as pylance wrote them? page by page? |
| `packed_files`, `protobuf` | is what other tools write read back? |
| `rclone_server` | what does another implementation of S3 say? |
| `loop_lag` | does our code hold an event loop? |
| `error_walk` | does a secret stand on an error? |
| `descriptors`, `programs` | is a file left open? what does a fresh process do? |
| `source_tree`, `doc_pages` | what stands in the sources, and in the pages of the documentation? |

A helper of one folder stays in that folder. A bench imports the product, other benches and `tests.profile`, no tests.
"""
