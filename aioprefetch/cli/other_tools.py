"""Commands and options of other tools (aws, s3cmd, rclone, mc, s5cmd, gsutil, a shell), and ours that do the same."""

from collections.abc import Mapping

COMMAND_ANSWERS = {
    "ls PLACE": "la list lsd lsf dir",
    "ls -lR PLACE": "lsl tree",
    "ls -R --json PLACE": "lsjson",
    "ls 'PLACE/**/NAME'": "find",
    "stat PLACE": "info attrib hash hashsum md5sum",
    "du --depth 1 PLACE": "ncdu size",
    "cat --range -4KiB: PLACE": "tail",
    "cat PLACE | wc": "wc",
    "cp SRC DST": "copy copyto get put download upload",
    "cp - DST": "pipe rcat",
    "sync SRC DST": "mirror rsync",
    "sync --dry-run SRC DST": "check cmp diff",
    "mv SRC DST": "move moveto rename",
    "rm PLACE": "del delete deletefile purge unlink",
    "presign PLACE": "link share sign signurl url",
    "scan --filter 'COLUMN > 5' PLACE": "query select sql",
    "doctor PLACE": "bench config configure ping test",
}
# Options that mean the same as ours: taken by the commands that have ours.
SAME_OPTIONS = {
    "anonymous": "no-sign-request",
    "dry-run": "dryrun",
    "human": "human-readable humanize",
    "depth": "max-depth",
    "quiet": "no-progress only-show-errors",
    "concurrency": "transfers",
    "no-clobber": "ignore-existing",
    "delete": "remove delete-after",
    "expires": "expires-in",
    "literal": "raw",
}
# Options for what happens anyway: taken by all commands.
NEEDLESS_OPTIONS = (
    "-P",
    "--progress",
    "--show-progress",
    "--fast-list",
    "--no-follow-symlinks",
    "--s3-no-check-bucket",
)
# The others, by what to do instead. Names of ours are among them, for commands that do not have them.
OPTION_ANSWERS = {
    "use -o request_payer=true": "--request-payer --requester-pays --s3-requester-pays",
    "use -o attempts_max=N, which counts the first attempt": "--retries --low-level-retries --retry-count",
    "use -o connect_timeout_seconds=N, read_timeout_seconds=N": "--cli-connect-timeout --contimeout"
    " --cli-read-timeout --timeout",
    "use -o part_bytes=16MiB": "--part-size --s3-chunk-size",
    "use -o checksum=sha256": "--checksum-algorithm",
    "use -o sse_customer_key=env:NAME": "--sse-c --sse-c-key --s3-sse-customer-key",
    "use --src-o region=NAME, --dst-o region=NAME": "--source-region --destination-region",
    "use --src-o follow_symlinks=true": "--follow-symlinks --copy-links -L",
    "use --concurrency N of cp and sync": "--checkers --concurrency --numworkers -m",
    "use --ca-bundle FILE": "--no-verify-ssl --no-check-certificate --insecure",
    "use --exclude or --include PATTERN, several times": "--exclude-from --include-from --files-from --filter",
    "use sync, which copies what has changed, --exact or --size-only": "--update -u --exact-timestamps --if-size-differ"
    " --if-source-newer",
    "use sync --delete, which deletes at the end": "--delete --delete-before --delete-during --delete-excluded",
    "use cp -n, which leaves what is there, or --dry-run": "-n --no-clobber",
    "use ls -R; of mv and stat a directory ends with /": "-r -R --recursive",
    "use du": "--summarize",
    "use --json, and jq": "--output --query --format",
    "use --profile NAME, or the variable AWS_SHARED_CREDENTIALS_FILE": "--config --credentials-file",
    "use write(…, content_encoding=, expires=, sse_kms_key_id=) in Python": "--content-encoding"
    " --content-disposition --content-language --expires --sse-kms-key-id",
    "the settings of the bucket apply": "--acl --grants --s3-acl --sse",
    "listings arrive page by page, as the store sends them": "--page-size --max-items --no-paginate",
    "progress and sums are shown only on a terminal": "-q --quiet",
}


def ours(name: str, table: Mapping[str, str]) -> str | None:
    """The key of a table whose words have a name."""
    return next((key for key, names in table.items() if name in names.split()), None)
