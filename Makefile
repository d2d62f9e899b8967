# The only entry points; CI calls the same ones. Each does its own `setup`, which is instant when
# nothing changed.
PYTHON ?= $(firstword $(shell command -v python3.11 2>/dev/null) $(shell command -v python3 2>/dev/null) python3)
TORCH ?= auto
ARGS ?=

.PHONY: help setup up down test check bench lock

help:
	@echo "make up      install what is missing, start a mesh here; Ctrl-C or 'make down' stops it"
	@echo "             (ARGS='--prefill 2 --decode 2 --port 8081' and so on: moonpool up --help)"
	@echo "make down    stop it from another terminal"
	@echo "make test    the quick suite"
	@echo "make check   formatting, lint, types, import contract"
	@echo "make bench   the benchmarks, beside rivals; about a quarter of an hour"
	@echo "make setup   only .venv, from the lock files (TORCH=cpu|cuda to choose the build)"
	@echo "make lock    renew the lock files"

setup:
	@"$(PYTHON)" scripts/setup.py --torch "$(TORCH)"

up: setup
	@.venv/bin/moonpool up $(ARGS)

down:
	@.venv/bin/moonpool down $(ARGS)

test: setup
	.venv/bin/python -m pytest -m "not slow" $(ARGS)

check: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/python -m pytest -q tests/unit/tidy

bench: setup
	.venv/bin/python -m bench.e2e --quick $(ARGS)
	.venv/bin/python -m bench.transfer --quick $(ARGS)
	.venv/bin/python -m bench.store --quick $(ARGS)
	.venv/bin/python -m bench.conductor --quick $(ARGS)
	.venv/bin/python -m bench.overload --quick $(ARGS)

lock:
	@"$(PYTHON)" scripts/lock.py $(ARGS)
