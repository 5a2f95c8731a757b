# make demo     train a small model and write an HTML report and the model to demo/ (sets up .venv)
# make test     run every test (sets up .venv)
# make quick    run the fast tests of the package, in less than two minutes
# make check    format, lint, types, import contracts, sizes, tags
# make docs     regenerate the command reference and the tables of results
# make site     build the HTML documentation with the API reference in site/
# make figures  draw the figures of the paper from stored records in figures/
# make bench    time the package against other code (stop everything else first)
# make records  make all records that are old (resumable; lists what needs a GPU)

PYTHON ?= python3
# Installed before everything else: a plain requirement for torch would fetch gigabytes of CUDA.
TORCH ?= torch==2.13.0
BIN := .venv/bin

.PHONY: help demo test quick check docs site figures bench records

help:
	@sed -n 's/^# make/make/p' Makefile

demo: .venv/.ready
	@$(BIN)/motes demo

test: .venv/.ready
	@$(BIN)/python -m pytest -n 2 --dist worksteal

quick: .venv/.ready
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not statistical" \
		tests/core tests/kalman tests/models tests/queries tests/training

check: .venv/.ready
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/check_sizes.py
	@$(BIN)/python tools/check_tags.py

docs: .venv/.ready
	@$(BIN)/python tools/make_cli_docs.py
	@$(BIN)/python -m experiments.results_table.make_tables
	@$(BIN)/python -m experiments.reliability.make_page
	@$(BIN)/python -m experiments.counting.score_counts --page
	@$(BIN)/python -m experiments.public_tables.make_page

site: .venv/.ready
	@$(BIN)/python -c 'import sphinx, myst_parser, furo' 2> /dev/null \
		|| $(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[site]'
	@$(BIN)/python -m sphinx -q -b html docs site

figures: .venv/.ready
	@$(BIN)/python -m experiments.paper_figures --out figures

bench: .venv/.ready
	@$(BIN)/python -m benchmarks kalman --out benchmarks/records/bench_kalman.json
	@$(BIN)/python -m benchmarks train --out benchmarks/records/bench_train.json
	@$(BIN)/python -m benchmarks scale --out benchmarks/records/scale.json \
		--picture docs/images/scale.png
	@$(BIN)/python -m benchmarks threads --out benchmarks/records/bench_threads.json
	@$(BIN)/python -m benchmarks.recordings --out benchmarks/records/bench_recordings.json
	@$(BIN)/python -m benchmarks.learning --out benchmarks/records/bench_learning.json

records: .venv/.ready
	@$(BIN)/python -m experiments.records make
	@$(BIN)/python -m experiments.records install runs/records

.venv/.ready: pyproject.toml
	@echo "setting up .venv (once; two to three minutes) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is too old; motes needs Python 3.11: make PYTHON=python3.11 ..."; exit 2; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check $(TORCH)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@
