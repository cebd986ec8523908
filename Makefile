# Every target works on a fresh machine with git, make and python3 (>= 3.11, with venv).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-interop test-long check bench format pins clean

# What each lane takes from the one suite. A test with no mark is quick and starts nothing.
UNIT    := not process and not spark and not interop and not long
SEARCH  := property and not process and not spark and not interop and not long
LONG_SEARCH := (property or long) and not process and not spark and not interop
PROCESS := (process or spark) and not interop and not long
LONG_PROCESS := long and (process or spark)

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

DEMO    := .demo

demo: $(READY)  ## the documents' examples, real brokers with real faults, their analysis on Spark
	@rm -rf $(DEMO)
	@$(BIN)/insync demo --telemetry $(DEMO)/telemetry
	@tests/prepare java
	@$(BIN)/insync pipeline report --source $(DEMO)/telemetry --out $(DEMO)/analysis \
	  --lag-time-max-ms 500,1000,1500,3000,10000 --lag-max-messages 100 --bucket-ms 1000

test: check  ## everything `check` does, every branch of the rules, long searches, real processes, Spark (Java)
	$(BIN)/pytest -n auto -m "$(UNIT)" tests/rules --cov=insync.rules --cov-fail-under=100
	tests/prepare java
	HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -n auto -m "$(SEARCH)"
	$(BIN)/pytest -n 2 --dist loadfile -m "$(PROCESS) and not timed" --durations=15
	$(BIN)/pytest -m "$(PROCESS) and timed" --durations=15

test-interop: $(READY)  ## other people's clients and Apache Kafka's tools (needs Java, Maven, kcat)
	tests/prepare java maven kcat chromium
	$(BIN)/pytest -m interop --durations=15

# pytest's 5 is "nothing has this mark": a list may be empty, a failure may not pass.
test-long: $(READY)  ## the full lists: hundreds of lives, minutes of kills, the longest searches
	tests/prepare java
	HYPOTHESIS_PROFILE=exhaustive $(BIN)/pytest -n auto -m "$(LONG_SEARCH)" --durations=15 || [ $$? -eq 5 ]
	$(BIN)/pytest -n 2 --dist load -m "$(LONG_PROCESS) and not timed" --durations=15 || [ $$? -eq 5 ]
	$(BIN)/pytest -m "$(LONG_PROCESS) and timed" --durations=15 || [ $$? -eq 5 ]

check: $(READY)  ## format, lint, types, layers, unit tests: under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -n auto -m "$(UNIT)"

# make bench ONLY=produce,latency PAIRS=10 KAFKA=no JSON=figures.json; QUICK=1 for a first look.
bench: $(READY)  ## figures beside Apache Kafka
	@$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(PAIRS),--pairs $(PAIRS)) \
	  $(if $(QUICK),--quick) $(if $(filter no,$(KAFKA)),--no-kafka) $(if $(JSON),--json $(JSON))

format: $(READY)  ## rewrite the code the way `check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The pinned file names versions and hashes, never the place they came from.
pins: $(READY)  ## pin the newest allowed versions anew (needs uv)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-emit-index-url --no-header --output-file requirements.txt

clean:  ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .import_linter_cache .peers $(DEMO)

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "insync needs Python 3.11 or newer; try: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
