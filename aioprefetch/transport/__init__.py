"""Range requests over HTTP/1.1, straight into the caller's memory: the data plane of the s3 and http services."""
