"""The catalogue of faults: for each row what goes wrong, and what is promised then. The tests name their rows.

W are the changes (write, copy, move, delete, upload, download, sync), S is what a store does at the wire to reads, and
D the disk of a cache of blocks.
"""

CHANGES = {
    "W01": (
        "hollow success",
        "A write or an upload is done when the store has named the ETag of what it holds. An empty 200, a page or an "
        "error with status 200 is tried again, and then raised.",
    ),
    "W02": (
        "hollow success",
        "A copy without its ETag is not a copy, and a move keeps its source until there is one.",
    ),
    "W03": (
        "hollow success",
        "A deletion counts for the keys that its response names. The others are deleted one by one, or named in the "
        "error.",
    ),
    "W04": (
        "lost response",
        "When the response to a conditional write is lost, one look at the object decides: our bytes are there, or it "
        "is written again. Where the look fails too, the error says that it may have happened.",
    ),
    "W05": (
        "lost response",
        "An upload whose completion got no response is found by its object. One whose id never arrived is counted, "
        "and is not aborted by a guess.",
    ),
    "W06": (
        "lost response",
        "A copy, move or deletion is sent again when its response is lost, and ends as if it had been done once.",
    ),
    "W07": (
        "early refusal",
        "A refused write, upload, copy, move or deletion leaves what was there, also when the refusal comes before "
        "the body was sent.",
    ),
    "W08": (
        "early refusal",
        "When a part of an upload is refused, the upload is aborted. If the abort is refused too, the error names the "
        "upload that stays.",
    ),
    "W09": (
        "early refusal",
        "Of many deletions those that are refused are named with their reasons, and all others are done.",
    ),
    "W10": (
        "any request fails",
        "When a request fails while a directory is copied, synced or moved, the report names its object, the others "
        "arrive, and nothing is deleted for want of a copy.",
    ),
    "W11": (
        "changed source",
        "A copy of an object that is overwritten meanwhile is whole and of one version, or it is a failure by name.",
    ),
    "W12": (
        "changed source",
        "What is written to the source of a move after its copy was made stays where it is.",
    ),
    "W13": (
        "changed source",
        "A local file that changes while it is uploaded does not become an object.",
    ),
    "W14": (
        "changed source",
        "A download of an object that is overwritten meanwhile is an error, and the old file stays. A download that "
        "is gone on with never joins two versions.",
    ),
    "W15": (
        "changed target",
        "Of several writers with a condition one wins; the others get an error and overwrite nothing.",
    ),
    "W16": (
        "changed target",
        "A copy or a move that must not replace anything replaces nothing, even if the target appears at the last "
        "moment.",
    ),
    "W17": (
        "changed target",
        "A deletion with an ETag deletes that version. A newer one stays.",
    ),
    "W18": (
        "changed target",
        "An append whose object is written by another client meanwhile fails, and the other client's bytes stay.",
    ),
    "W19": (
        "alias",
        "A file is not lost when it is copied or moved onto itself by another name: below a linked directory, by a "
        "hard link, by a link to it, or in other letters where the file system ignores case.",
    ),
    "W20": (
        "alias",
        "A file is not uploaded or downloaded onto itself. One file has one identity under all of its names.",
    ),
    "W21": (
        "alias",
        "An object is the same one with another spelling of its endpoint, with other credentials, and below another "
        "root.",
    ),
    "W22": (
        "overlap",
        "A copy, move or sync of which a target is also a source is refused before anything is written.",
    ),
    "W23": (
        "overlap",
        "A sync deletes neither its own source nor what it has just written.",
    ),
    "W24": (
        "two to one",
        "Two sources with one target are refused, both by name, also where the file system gives two names to one "
        "file.",
    ),
    "W25": (
        "two to one",
        "A key that no file can have, or that is a file and a directory at once, is a failure by name and stops no "
        "other object.",
    ),
    "W26": (
        "literal pattern",
        "A name that exists is that name when it is copied, moved or synced, with any wildcards in it.",
    ),
    "W27": (
        "literal pattern",
        "To remove a name with wildcards removes the object of this name, and none that the pattern would match.",
    ),
    "W28": (
        "link",
        "No link leads a write, a copy or a removal out of its root, or into the source of the copy.",
    ),
    "W29": (
        "link",
        "A link that is named moves as a link, also to another file system, and what it leads to stays.",
    ),
    "W30": (
        "link",
        "Links, special files and refused names that a copy passes over are in its report, and a sync deletes nothing "
        "at and below their names.",
    ),
    "W31": (
        "permission",
        "A copy of a file gives no user a right that its source refuses, also while it is written.",
    ),
    "W32": (
        "permission",
        "What may not be looked at is an error, not absence: no pattern is tried and nothing is deleted for it.",
    ),
    "W33": (
        "absence",
        "An empty source deletes nothing, and a sync that would delete more than its limit deletes nothing at all.",
    ),
    "W34": (
        "disk full",
        "A write, copy or download that finds no room is an error, and the old file stays whole.",
    ),
    "W35": (
        "disk full",
        "What was written before the disk was full is removed.",
    ),
    "W36": (
        "kill",
        "A process that is killed at any time while it writes, copies, moves, deletes, uploads, downloads or syncs "
        "leaves each name with its old value or its new one, and no value is lost.",
    ),
    "W37": (
        "kill",
        "The run after a killed one ends what was begun: a move recognises its own copy, and a long download goes on "
        "with the bytes that are safe on the disk.",
    ),
    "W38": (
        "kill",
        "A move to another file system deletes its source when the bytes and the new name are on the device, not "
        "before.",
    ),
    "W39": (
        "cancel",
        "A write, upload, download, copy, move or deletion that is cancelled at any turn of the event loop leaves the "
        "old value or the new one, and no hidden file.",
    ),
    "W40": (
        "cancel",
        "A copy, move or sync of a directory that is cancelled anywhere has whole objects alone, and a source is there "
        "unless its target is whole.",
    ),
    "W41": (
        "cancel",
        "An upload that is cancelled at any step is completed or aborted. If neither works, a warning names it.",
    ),
    "W42": (
        "cancel",
        "An operator or an event loop that is closed during a write leaves no partial file and no open one.",
    ),
    "W43": (
        "cancel",
        "A block that fails, a writer that is dropped, and Ctrl-C leave no object. What is dropped is named in "
        "the log.",
    ),
    "W44": (
        "clock",
        "A wrong clock of this machine is corrected by that of the store; a clock that stays wrong is an error that "
        "shows both times.",
    ),
    "W45": (
        "clock",
        "A time never makes two objects the same by itself: only a caller can say that size and time are enough.",
    ),
    "W46": (
        "clock",
        "The age of an unfinished upload, after which it is aborted, is measured by one clock.",
    ),
    "W47": (
        "old listing",
        "The store decides what a verb writes, creates, refuses and deletes, and not a listing that was kept.",
    ),
    "W48": (
        "threads",
        "An upload that waits for a pipe or for code of the caller keeps no program from ending, and no call needs the "
        "threads of the event loop.",
    ),
}

WIRE = {
    "S01": ("a 500, once", "The request is tried again, and the bytes are exact."),
    "S02": ("a 500 for ever", "The attempts end within their number and the deadline, with the last status."),
    "S03": ("a proxy's page with 502 or 504", "It is a failure that is tried again."),
    "S04": ("503 SlowDown for half a minute", "Fewer requests at once and longer pauses, then all of them again."),
    "S05": ("a wait that the store asks for", "It is kept, unless it goes beyond the deadline."),
    "S06": ("a 429", "It is tried again as throttling is."),
    "S07": ("400 RequestTimeout", "The request is sent again."),
    "S08": ("a 200 whose body is an error", "It is not an object: no byte of it is returned."),
    "S09": ("a reset before the head", "The request is tried again."),
    "S10": ("a reset of a connection that was kept", "One request more, on a new connection; their number is bounded."),
    "S11": ("a close in place of a response", "The request is tried again."),
    "S12": ("a reset between head and body", "The read begins again at its first byte."),
    "S13": ("a body that is cut by a close", "The read goes on at the exact byte, of the same version."),
    "S14": ("a body that is cut by a reset", "The read goes on at the exact byte, of the same version."),
    "S15": ("a short body without a length", "It is not the end of the file."),
    "S16": ("a short range", "It is asked for again, and then an error."),
    "S17": ("a range without a byte", "It is asked for again; no endless loop."),
    "S18": ("bytes after the body", "The connection is not used again."),
    "S19": ("another range than the one asked for", "It is asked for again, and then an error without a byte of it."),
    "S20": ("a range that does not say which it is", "It is asked for again, and then an error."),
    "S21": ("another total size", "The object has changed: an error."),
    "S22": ("a range without a total size", "It is taken if range and ETag are right."),
    "S23": ("the whole object for a range", "It is taken where it is what was asked for, and else not read."),
    "S24": ("a 416 for a range inside the object", "It is an error, or a changed object if that has shrunk."),
    "S25": ("an empty object, or its end", "No request is sent for no bytes."),
    "S26": ("a range without a byte, from us", "None is ever sent."),
    "S27": ("an object that vanishes", "Not found before its first byte, changed after it."),
    "S28": ("a 404 of a store that lags", "It is a response: not tried again."),
    "S29": ("an object that is overwritten during a read", "The read is an error; it never mixes versions."),
    "S30": ("the same, of a server without conditions", "The ETags of the responses are compared."),
    "S31": ("no ETag", "Over S3 an error; over HTTP time and size, or a read that begins again."),
    "S32": ("ETags of any shape", "They are compared; weak ones are not sent as a condition."),
    "S33": ("replicas that do not agree", "Two ETags are two versions."),
    "S34": ("a version that was asked for by its id", "It stays readable."),
    "S35": ("no response", "Each attempt has its limit, and all of them the deadline."),
    "S36": ("a body that stops after its head", "The read goes on on a new connection."),
    "S37": ("a body that stops in the middle", "The read goes on at the exact byte."),
    "S38": ("a body that drips", "It counts as stopped, and what came is kept."),
    "S39": ("one request that is late", "It is sent again, few of them, and the first response is taken."),
    "S40": ("two responses of two versions", "They are never mixed."),
    "S41": ("a name that does not resolve", "Two attempts at most, within five seconds."),
    "S42": ("a refused connection", "It is tried again."),
    "S43": ("a connection that is never made", "Each attempt has its limit; other hosts do not wait."),
    "S44": ("a wrong certificate", "It is an error at once; nothing is sent without a certificate."),
    "S45": ("a redirect to another origin", "No credential reaches it."),
    "S46": ("a redirect without a region", "It is an error after one request."),
    "S47": ("a bucket in another region", "The error names the region."),
    "S48": ("redirects that lead astray or in circles", "They are refused."),
    "S49": ("an expired signature", "It is made again once; a wrong clock is an error with the right time."),
    "S50": ("access denied", "It is an error after one request."),
    "S51": ("expired keys", "New ones are asked for once, and the read goes on."),
    "S52": ("an endpoint of credentials that hangs", "Keys that are valid still sign; nothing else waits."),
    "S53": ("a request that waited for its turn", "It is signed when it is sent."),
    "S54": ("an archived object", "The error says so."),
    "S55": ("a login page with status 200", "It is not an object."),
    "S56": ("an object that is stored compressed", "Its bytes are those that are stored."),
    "S57": ("a body in chunks without a length", "Its bytes are exact."),
    "S58": ("a head that can be read in two ways", "It is refused, and its connection closed."),
    "S59": ("a head without end", "It is refused with little memory."),
    "S60": ("an error text without end", "The status is reported, with little memory."),
    "S61": ("pages that repeat, or name no next", "A loop is an error, and a key comes once."),
    "S62": ("a key outside of the prefix", "It is rejected and counted."),
    "S63": ("a stat with another size than the bytes", "The object has changed: an error."),
    "S64": ("a size that cannot be one", "It is an error; no memory is taken for it."),
    "S65": ("a bit that flips on the network below TLS", "The limit: a range has no checksum of its own."),
    "S66": ("an error after the last byte", "All bytes are there: success."),
    "S67": ("a close after every response", "Everything is read; no slot is lost."),
    "S68": ("idle connections that are dropped", "No read notices."),
    "S69": ("single bytes of a body that is resumed", "They are exact, with one request more for each fault."),
    "S70": ("every request of a long read fails once", "Exact bytes with at most twice the requests."),
}

DISK = {
    "D01": ("a full or broken device", "Reads go on from the store; nothing is written for a while; one warning."),
    "D02": ("a disk that is full at any byte", "No partial file is left."),
    "D03": ("short writes", "They are carried on."),
    "D04": ("a file that cannot be read", "It is a miss, and is removed."),
    "D05": ("a truncated file", "It is a miss."),
    "D06": ("a flipped bit in the data", "It is found."),
    "D07": ("a flipped bit in the tail", "It is found."),
    "D08": ("files that were exchanged", "They are misses."),
    "D09": ("a file of zeroes", "It is a miss."),
    "D10": ("a length that is not true", "No memory is taken for it."),
    "D11": ("another version of the format", "It is a miss."),
    "D12": ("a directory that is removed", "It is made again, and reads go on."),
    "D13": ("a link in place of the directory", "It is refused."),
    "D14": ("a link in place of a block", "It is neither read nor written through."),
    "D15": ("a FIFO or a directory in place of a block", "It is a miss, without a wait."),
    "D16": ("a directory that others may write", "A private one inside is used, or none."),
    "D17": (
        "a claim that another holds, or something else of its name",
        "It is left alone; what is no file makes room.",
    ),
    "D18": ("any umask", "All that is written is private."),
    "D19": ("a directory that may not be used", "Reads go on, with one warning."),
    "D20": ("eight processes at once", "One valid file of each block, no wrong byte."),
    "D21": ("a kill between any two system calls", "A block is whole or absent, and leftovers are removed."),
    "D22": ("an eviction while a block is read", "The read goes on."),
    "D23": ("a block that another process removed", "It is a miss."),
    "D24": ("a new version of the object", "Blocks of the old one are never served."),
    "D25": ("another tenant", "Blocks are never shared."),
    "D26": ("names that are the same when joined", "They are kept apart."),
    "D27": ("a disk that does not respond", "It is passed by after a deadline."),
    "D28": ("files of other processes", "They count for the limit."),
    "D29": ("a disk that shrinks", "Blocks are removed, then none is written."),
    "D30": ("times in the future", "They protect no block."),
    "D31": ("planted code", "It is never loaded."),
    "D32": ("a block of which a part came", "It is never written."),
}
