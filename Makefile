.DEFAULT_GOAL := help
.PHONY: help setup run demo docs test test-fast test-secrets screenshots soak check bench bench-peers bench-spark clean

python := .venv/bin/python

# Each pytest worker starts a PostgreSQL of its own, and waits for it half of the time: three keep two cores busy.
# Tests of one file, and of one group (those that share a Spark), stay on one worker: tests/support/distribution.py.
PYTEST_ARGS ?= -n 3 --dist loadgroup
# More arguments for pytest, the benchmarks or the server: make test ARGS="-k pop", make run ARGS="--port 7000"
ARGS ?=

help: ## List these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

setup: ## Make .venv ready; the other targets do this first, and it costs nothing when nothing changed
	@tools/setup

run: setup ## Start the server with an embedded PostgreSQL; ARGS go to it (lockstep serve)
	@$(python) -m lockstep serve $(ARGS)

demo: setup ## Show a shop with a pipeline on Spark, and count in the end; ARGS go to it (lockstep demo)
	@$(python) -m lockstep demo $(ARGS)

docs: setup ## Build the documentation, which the server shows at /docs/, and fail if a page or a link is missing
	@tools/docs --strict

test: setup ## Run the tests; ARGS go to pytest
	@tools/dashboard test
	@tools/browser
	$(python) -m pytest $(PYTEST_ARGS) $(ARGS)

test-fast: setup ## Run what needs no database, in less than a minute; ARGS go to pytest
	$(python) -m pytest $(PYTEST_ARGS) tests/core tests/storage/contract tests/client/test_protocol.py \
		tests/client/test_retry.py tests/client/test_progress.py tests/client/test_generated.py -k "not postgres" $(ARGS)

test-secrets: setup ## Run the tests, and search all that they print and log for secrets; ARGS go to pytest
	PYTHONPATH=tests $(python) -m pytest -p secret_search $(PYTEST_ARGS) $(ARGS)

screenshots: setup ## Write a picture of every page of the dashboard to build/screenshots, light and dark, wide and as on a phone
	@tools/browser
	@tools/screenshots $(ARGS)

soak: setup ## Run the kill -9 tests for some 20 minutes, all of Spark's, big numbers, and many random examples; ARGS go to pytest
	LOCKSTEP_SOAK=1 $(python) -m pytest tests/chaos tests/spark tests/scale tests/model tests/core tests/e2e/test_revocation.py \
		tests/engine/test_spool_files.py tests/server/test_fuzz.py $(ARGS)

check: setup ## Check format, lint, types and import contracts
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy
	.venv/bin/lint-imports --no-logo
	@tools/dashboard check

bench: setup ## Run the benchmarks; ARGS go to them
	$(python) -m benchmarks.core $(ARGS)

bench-peers: setup ## Measure Lockstep beside other queues, which it installs; ARGS go to it
	@tools/peers
	$(python) -m benchmarks.peers $(ARGS)

bench-spark: setup ## Run the Spark benchmark, against Spark's own JDBC source and sink; ARGS go to it
	@tools/jdbc
	$(python) -m benchmarks.spark $(ARGS)

# Data that only the user can make again (.lockstep, benchmark results) stays.
clean: ## Remove .venv, caches and build output
	rm -rf dashboard/node_modules src/lockstep/server/dashboard src/lockstep/server/documentation .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist src/*.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
