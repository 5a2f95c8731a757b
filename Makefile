# make demo    see it learn and work: sets up .venv, then leaves one HTML report and a model in demo/
# make test    sets up .venv, then runs every test
# make check   format, lint, types, import contracts, sizes, equation tags
# make docs    writes the generated pages again: docs/cli.md and the tables of results

PYTHON ?= python3
# Installed before everything else: a plain requirement for torch would fetch gigabytes of CUDA.
TORCH ?= torch==2.13.0
BIN := .venv/bin

.PHONY: help demo test check docs

help:
	@sed -n 's/^# make/make/p' Makefile

demo: .venv/.ready
	@$(BIN)/motes demo

test: .venv/.ready
	@$(BIN)/python -m pytest -n 2

check: .venv/.ready
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/check_sizes.py
	@$(BIN)/python tools/check_tags.py

docs: .venv/.ready
	@$(BIN)/python tools/make_cli_docs.py
	@$(BIN)/python tools/make_results.py
	@$(BIN)/python tools/make_reliability.py
	@$(BIN)/python tools/score_counts.py --page

.venv/.ready: pyproject.toml
	@echo "setting up .venv (once; two to three minutes) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is too old; motes needs Python 3.11: make PYTHON=python3.11 ..."; exit 2; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check $(TORCH)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@
