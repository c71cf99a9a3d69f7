"""Names of options: what is meant by Spark's own, and which mean something for a batch or for a stream alone."""

import pytest

from aioprefetch.errors import ConfigInvalid
from aioprefetch.spark.options import _SPARKS, PAGE, SOURCE_OPTIONS, check_scope, store_options_of_all
from aioprefetch.spark.settings import parse_options
from tests.profile import each_of
from tests.repository.source_tree import ROOT


@each_of(
    ("name", "named"),
    [
        ("maxFileAge", "files of every age"),
        ("latestFirst", "cannot be chosen"),
        ("matchPattern", "use pathGlobFilter"),
        ("int96RebaseMode", "old calendar"),
        ("sourceArchiveDir", r"cleanSource\.moveDestination"),
        ("headers", "use header"),
        ("separator", "use sep"),
        ("region_name", r"use region \("),
        ("accessKey", "use accessKeyId"),
        ("spark.hadoop.fs.s3a.secret.key", "belong into the session"),
        ("batchRow", "did you mean batchRows"),
        ("quxx", "like none of them"),
    ],
)
def test_an_unknown_option_is_refused_with_a_replacement_and_the_page_of_all(name: str, named: str) -> None:
    with pytest.raises(ConfigInvalid, match=rf"there is no option '{name.lower()}'; .*{named}.*{PAGE}"):
        parse_options({"path": "/data", name: "1"})


def test_hints_are_of_no_option_and_name_those_there_are() -> None:
    assert not _SPARKS.keys() & {*SOURCE_OPTIONS, *store_options_of_all()}
    assert all(name == name.lower() for name in _SPARKS)
    assert (ROOT / PAGE).exists()


def test_options_of_streams_are_refused_in_a_batch_and_the_other_way_around() -> None:
    check_scope(["path", "maxPartitions", "allowEmpty"], "batch")
    check_scope(["path", "maxPartitions", "stateLocation"], "stream")
    with pytest.raises(ConfigInvalid, match=r"cleanSource, stateLocation: only for streams"):
        check_scope(["path", "STATELOCATION", "cleanSource"], "batch")
    with pytest.raises(ConfigInvalid, match=r"allowEmpty, pushFilters: only for batches"):
        check_scope(["allowempty", "pushFilters"], "stream")
