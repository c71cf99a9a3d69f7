"""Files of this machine: directories by descriptor, threads, and writing whole or not at all.

For the file service, for downloads and uploads.
"""
