# Every target sets up what it needs by itself (tools/environment.py); nothing but make and Python 3.10+ is assumed.
#   make PYTHON=python3.12 test      another Python        make SPARK=4.0 test-engine      another Spark
#   make test ARGS="-k prune -x"     arguments for the command behind a target

PYTHON ?= python3
SPARK ?= newest
ARGS ?=
RUN = @"$(PYTHON)" tools/environment.py --spark "$(SPARK)" --
TESTS = $(RUN) pytest tests/ --numprocesses 4 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
MINUTES ?= 30

.PHONY: help demo test test-all test-unit test-engine test-cluster integration prove fuzz soak bench lint format docs site dist versions lock clean distclean

help:  ## list the targets
	@echo "make TARGET [PYTHON=python3.12] [SPARK=4.0] [ARGS=...]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16

demo:  ## the tour: queues, crashes and exactly-once on this machine
	$(RUN) cuesqueue demo $(ARGS)

test:  ## the tests to run after each change: no server, no cluster, some with a real Spark
	$(TESTS) -m "not thorough" $(ARGS)

test-all:  ## all tests that need nothing but this machine (ARGS="-m thorough": what `make test` leaves out)
	$(TESTS) $(ARGS)

test-unit:  ## only the unit tests: one process, no server, no Spark
	$(RUN) pytest tests/unit --numprocesses 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-engine:  ## only the tests with a real Spark (SPARK=4.0, 4.1, 4.2 or newest)
	$(RUN) pytest tests/ -m engine $(ARGS)

test-cluster:  ## only the tests on a standalone Spark cluster, and with Spark Connect
	$(RUN) pytest tests/engine/test_cluster.py integration -m cluster $(ARGS)

integration:  ## the same promises against real servers, with faults
	$(RUN) pytest integration $(ARGS)

prove:  ## `cuesqueue prove`: its parts, and whole jobs with planted mistakes
	$(RUN) pytest tests/prove integration/prove $(ARGS)

soak:  ## MINUTES=30 of a steady load with kills: does anything get lost, or grow?
	$(RUN) python -m integration.soak --minutes $(MINUTES) $(ARGS)

fuzz:  ## MINUTES=60 of the machines that search for what is wrong in reading, and in the store
	$(RUN) python -m tools.fuzz --minutes $(MINUTES) $(ARGS)

bench:  ## the benchmark table
	$(RUN) python -m benchmarks $(ARGS)

lint:  ## ruff and mypy
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

format:  ## let ruff put the code in form
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

site:  ## the documentation as a site, in build/site
	$(RUN) python -m mkdocs build --strict $(ARGS)

docs:  ## write the generated pages of docs/ anew
	$(RUN) python tools/generate_docs.py $(ARGS)
	$(RUN) python -m benchmarks.figures $(ARGS)

dist:  ## wheel and sdist, checked, and tried in an empty environment; a bill of materials, SHA256SUMS
	$(RUN) python tools/dist.py $(ARGS)

versions:  ## run the tests of the versions table and note the counts (ARGS="unit engine")
	$(RUN) python tools/versions.py $(ARGS)

lock:  ## write locks/ anew (ARGS=--upgrade takes newer versions)
	@"$(PYTHON)" tools/lock.py $(ARGS)

clean:  ## remove caches and build results
	rm -rf build dist artifacts spark-warehouse metastore_db .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove the environments too
	rm -rf .venv .venv-* .venv*.lock
