.DEFAULT_GOAL := help
.PHONY: help setup run test soak check bench clean

python := .venv/bin/python

# Each pytest worker starts a PostgreSQL of its own, so many workers cost more than they gain.
PYTEST_ARGS ?= -n 2
# More arguments for pytest, the benchmarks or the server: make test ARGS="-k pop", make run ARGS="--port 7000"
ARGS ?=

help: ## List these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 10

setup: ## Make .venv ready; the other targets do this first, and it costs nothing when nothing changed
	@tools/setup

run: setup ## Start the server with an embedded PostgreSQL; ARGS go to it (lockstep serve)
	@$(python) -m lockstep serve $(ARGS)

test: setup ## Run the tests; ARGS go to pytest
	$(python) -m pytest $(PYTEST_ARGS) $(ARGS)

soak: setup ## Run the kill -9 tests for some 20 minutes, with kills at random times; ARGS go to pytest
	LOCKSTEP_SOAK=1 $(python) -m pytest tests/chaos $(ARGS)

check: setup ## Check format, lint, types and import contracts
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy
	.venv/bin/lint-imports --no-logo

bench: setup ## Run the benchmarks; ARGS go to them
	$(python) -m benchmarks.core $(ARGS)

# Data that only the user can make again (.lockstep, benchmark results) stays.
clean: ## Remove .venv, caches and build output
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist src/*.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
