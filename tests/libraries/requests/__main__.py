"""The command: ``python -m tests.libraries.requests [NAME ...] [--json] [--page]``.

Names are those of sections and of jobs. Without ``--json`` it prints tables; ``--page`` writes them into the README and
docs/reference/requests.md, and needs all of them.
"""

import argparse
import dataclasses
import json
import logging
import sys
import warnings

from tests.libraries.requests import page
from tests.libraries.requests.arrays import SECTION as ARRAYS
from tests.libraries.requests.cost import Costs
from tests.libraries.requests.large_files import SECTION as FILES
from tests.libraries.requests.small_file import SECTION as SMALL_FILE
from tests.libraries.requests.urls import SECTION as URLS

SECTIONS = (FILES, ARRAYS, URLS, SMALL_FILE)


def main() -> None:
    """Count what is asked for."""
    known = {section.name for section in SECTIONS} | {name for section in SECTIONS for name in section.jobs}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(sorted(known)))
    parser.add_argument("--json", action="store_true", help="print what was counted, job by job")
    parser.add_argument("--page", action="store_true", help="write the tables into the documentation")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - known:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if arguments.page and arguments.names:
        parser.error("--page needs all tables")
    # s3fs leaves sessions to the collector of garbage, which warns, and to loops that have ended.
    warnings.simplefilter("ignore")
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
    found: dict[str, Costs] = {}
    for section in SECTIONS:
        wanted = [name for name in section.jobs if not arguments.names or {section.name, name} & {*arguments.names}]
        if wanted:
            found[section.name] = section.measure(wanted)
    if arguments.json:
        json.dump(found, sys.stdout, default=dataclasses.asdict)
    elif arguments.page:
        page.write(SECTIONS, found)
    else:
        sys.stdout.write(page.tables(SECTIONS, found) + "\n")


if __name__ == "__main__":
    main()
