"""The lines that tests are marked with by `@checks`: how many each list has, and which of them do not apply."""

_OPENDAL = {"R": 34, "S": 10, "L": 12, "W": 12, "D": 7, "C": 10, "G": 5, "P": 4, "E": 6}
_OBJECT_STORE = {"O": 5}
_S3A = {"S": 20, "C": 10, "P": 14, "V": 24}
_RELIABILITY = {"C": 38, "D": 32, "I": 23, "K": 32, "P": 21, "S": 70, "W": 49}
_SOURCE = {"L": 12, "F": 10, "R": 2, "Q": 8}

OPENDAL_IDS = [f"opendal:{letter}{n}" for letter, last in _OPENDAL.items() for n in range(1, last + 1)]
OBJECT_STORE_IDS = [f"object_store:{letter}{n}" for letter, last in _OBJECT_STORE.items() for n in range(1, last + 1)]
S3A_IDS = [f"s3a:{letter}{n:02}" for letter, last in _S3A.items() for n in range(1, last + 1)]
RELIABILITY_IDS = [f"reliability:{letter}{n:02}" for letter, last in _RELIABILITY.items() for n in range(1, last + 1)]
SOURCE_IDS = [f"source:{letter}{n}" for letter, last in _SOURCE.items() for n in range(1, last + 1)]
ALL_IDS = frozenset(OPENDAL_IDS + OBJECT_STORE_IDS + S3A_IDS + RELIABILITY_IDS + SOURCE_IDS)

NOT_APPLICABLE: dict[str, str] = {
    "opendal:W7": "objects are written whole; no store of ours can append without rewriting",
    "s3a:S20": "a seek beyond the end is allowed, as POSIX has it, whether or not the size is known; reads there "
    "return b''",
    "s3a:P05": "no read takes an offset into the destination buffer: slice a memoryview instead",
    "s3a:P07": "no read takes a length beside the destination buffer: the buffer's length is the length",
    "s3a:V18": "the caller hands in no allocator: buffers come from the byte budget and go back to it",
    "s3a:V20": "merged ranges are internal and no public call accepts them",
}
