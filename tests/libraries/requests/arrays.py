"""zarr and xarray over our store, obstore's and s3fs's, all on one counting S3."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import s3fs
from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import FsspecStore

from aioprefetch.testing import CountingS3Server
from tests.libraries.requests.cost import Cost, Costs, Section, kinds_of
from tests.libraries.zarr_jobs import JOBS, MakeStore, over_aioprefetch, over_obstore
from tests.stores.stacks import MotoBucket


@contextmanager
def over_s3fs(server: CountingS3Server, bucket: str) -> Iterator[Store]:
    """zarr's store over s3fs, which keeps no listings from one job to the next."""
    files = s3fs.S3FileSystem(
        key=server.access_key_id,
        secret=server.secret_access_key,
        endpoint_url=server.endpoint_url,
        client_kwargs={"region_name": server.region},
        asynchronous=True,
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    with FsspecStore(files, path=f"{bucket}/data") as store:
        yield store
    sync(sync(files.set_session()).close())


STORES: dict[str, MakeStore] = {
    "aioprefetch zarr": over_aioprefetch,
    "obstore": over_obstore,
    "s3fs": over_s3fs,
}


def measured(names: Sequence[str]) -> Costs:
    """The cost of some jobs. All are run, in their order: what reads finds what was written before."""
    found: Costs = {name: {} for name in names}
    with CountingS3Server() as server:
        for number, (library, make) in enumerate(STORES.items()):
            bucket = f"zarr-{number}"
            MotoBucket(bucket)
            for job in JOBS:
                server.reset()
                with make(server, bucket) as store:
                    job(store)
                if job.__name__ in found:
                    kinds = kinds_of((request.method, request.query) for request in server.requests)
                    found[job.__name__][library] = Cost(kinds, server.bytes_sent)
    return found


def in_a_row(sentence: str) -> str:
    """A sentence as a cell of a table."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")


SECTION = Section(
    name="arrays",
    title="zarr",
    about="zarr 3 over each library's store: `ap.zarr.Store`, `zarr.storage.ObjectStore`, `FsspecStore`.",
    libraries=tuple(STORES),
    jobs={job.__name__: in_a_row(job.__doc__ or "") for job in JOBS},
    measure=measured,
)
