"""``python -m aioprefetch``: the command line."""

import sys

from aioprefetch.cli import main

if __name__ == "__main__":
    sys.exit(main())
