# Everything a person or a machine runs. `make` alone lists it.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full test-versions lint js bench bench-explorer bench-peers bench-parallel bench-storage bench-dataset pins clean environment front-end
SHELL := /bin/sh

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*  ## /\1\t/' | \
		awk -F'\t' '{ printf "  make %-14s %s\n", $$1, $$2 }'

setup:  ## .venv with everything to use lensview, and the demo model
	@sh scripts/environment.sh lab,demo

demo: setup  ## set up, then JupyterLab on the first notebook
	@.venv/bin/python scripts/lab.py notebooks/01_first_look.ipynb

test: environment  ## set up, then every test of the fast tier (a browser included)
	.venv/bin/python -m pytest

test-full: environment test-versions  ## every test, the long ones too
	.venv/bin/python -m pytest -m ""

# The lowest transformers that lensview takes, the newest, and one below, which it refuses.
test-versions: environment  ## the tests of tensor parallelism with old and new transformers
	@sh scripts/versions.sh

lint: environment  ## the linters and type checkers alone
	.venv/bin/python -m pytest tests/test_house.py

js: front-end  ## rebuild the front end's bundle
	cd js && npm run build

bench: setup  ## what capture costs, one table
	@.venv/bin/python -m benchmarks.capture

bench-explorer: environment  ## what the explorer costs in JupyterLab, beside plotly's FigureWidget
	@.venv/bin/python -m benchmarks.explorer

bench-peers: setup  ## the same beside nnsight and torchlens, in an environment of their own
	@test -x .venv-bench/bin/python || .venv/bin/python -m venv .venv-bench
	@.venv-bench/bin/python -m pip install -q -c constraints.txt -e '.[demo]' \
		nnsight==0.8.1 torchlens==2.36.1
	@.venv-bench/bin/python -m benchmarks.peers

bench-storage: setup  ## what saving and loading a trace costs, beside raw safetensors
	@.venv/bin/python -m benchmarks.storage

bench-parallel: setup  ## what reading costs between ranks, beside nnsight
	@test -x .venv-bench/bin/python || .venv/bin/python -m venv .venv-bench
	@.venv-bench/bin/python -m pip install -q -c constraints.txt -e '.[demo]' nnsight==0.8.1
	@.venv-bench/bin/python -m benchmarks.parallel

bench-dataset: setup  ## what a dataset of activations costs, beside nnsight and torchlens
	@test -x .venv-bench/bin/python || .venv/bin/python -m venv .venv-bench
	@.venv-bench/bin/python -m pip install -q -c constraints.txt -e '.[demo]' \
		nnsight==0.8.1 torchlens==2.36.1
	@.venv-bench/bin/python -m benchmarks.dataset

pins:  ## write constraints.txt from .venv
	@.venv/bin/python scripts/pins.py > constraints.new && mv constraints.new constraints.txt

clean:  ## remove what was built; the demo model in its cache stays
	rm -rf .venv .venv-* js/node_modules dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis test-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What the tests need beside what users need.
environment: front-end
	@sh scripts/environment.sh lab,demo,dev
	@sh scripts/browser.sh

front-end:
	@sh scripts/front_end.sh
