# Every target works on a fresh machine with git, make and python3 (>= 3.11, with venv).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Images of Python like to set it. Without bytecode each pytest and each broker compiles everything.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test processes kernels analysis searches timed test-interop test-long test-mutants soak check types units bench docs format pins clean

# What each lane takes from the one suite. A test with no mark is quick and starts nothing.
UNIT    := not process and not spark and not interop and not long
FAST    := $(UNIT) and not slow
# With the searches, which `test` makes longer, every unit test runs once.
PLAIN   := $(UNIT) and not property
# The tables' tests on the engine without Java are many small ones, as the searches are.
NO_JAVA := not process and (local or not spark) and not interop
SEARCH  := (property or local) and not long and $(NO_JAVA)
LONG_SEARCH := (property or long) and $(NO_JAVA)
PROCESS := process and not spark and not interop and not long
SPARK   := spark and not local and not interop and not long
LONG_PROCESS := long and (process or spark) and not local

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

DEMO    := .demo

demo: $(READY)  ## the documents' examples, real brokers with real faults, their analysis on Spark
	@rm -rf $(DEMO)
	@$(BIN)/insync demo --telemetry $(DEMO)/telemetry
	@echo
	@echo "Act 5 of 5: What would other settings have done?"
	@echo "Why it matters: the recorded telemetry answers it before a setting is changed."
	@echo "It runs on Spark, which needs Java 17. For root, make installs a missing Java."
	@tests/prepare java
	@$(BIN)/insync pipeline report --engine spark --source $(DEMO)/telemetry --out $(DEMO)/analysis \
	  --lag-time-max-ms 500,1000,1500,3000,10000 --lag-max-messages 100 --bucket-ms 1000 \
	  --min-record 10s
	@echo
	@echo "Its advice is from a staged minute: --min-record 10s asked for it. The default is 24h,"
	@echo "because a limit has to bear a day's peaks, and no cluster should be set by this one."
	@echo
	@echo "Try next:"
	@echo "  open $(DEMO)/analysis/report.html in a browser"
	@echo "  $(BIN)/insync explain                   every example of the documents"
	@echo "  $(BIN)/insync cluster start --data-dir $(DEMO)/cluster --detach"
	@echo "  $(BIN)/insync replicas -b 127.0.0.1:9092 --watch"

# The rules are covered by their own tests alone, so these run apart from the other unit tests.
test: $(READY)  ## what `check` does, every branch of the rules, long searches, real processes, Spark (Java)
	+@$(BESIDE_TYPES) 'MARKS=$(PLAIN)' 'IGNORED=--ignore=tests/rules'
	$(BIN)/pytest -n auto -m "$(UNIT)" tests/rules --cov=insync.rules --cov-fail-under=100
	tests/prepare java
	+@$(MAKE) --no-print-directory --jobs=3 timed searches

# Tests with processes mostly wait. The analysis, one Spark session with a core or two of work, and
# the searches take what they leave of the cores: Spark at a low priority, the searches in the
# scheduler's idle class, which yields at once. The output of these two is printed at their end.
IDLE := $(shell command -v chrt >/dev/null && echo chrt --idle 0 || echo nice -n 19)
ANALYSIS_LOG := .analysis.log
SEARCHES_LOG := .searches.log
PRINTED_AT_END = > $(1) 2>&1; code=$$?; cat $(1); exit $$code

# Once, and not in each of their workers.
kernels: $(READY)
	@PYTHONPATH=.:tests nice -n 5 $(BIN)/python -m support.pipeline.compile_kernels

analysis: kernels
	@nice -n 10 $(BIN)/pytest -m "$(SPARK)" --durations=15 $(call PRINTED_AT_END,$(ANALYSIS_LOG))

searches: kernels
	@HYPOTHESIS_PROFILE=thorough $(IDLE) $(BIN)/pytest -n auto --dist worksteal -m "$(SEARCH)" \
	  --ignore=tests/metadata --durations=15 $(call PRINTED_AT_END,$(SEARCHES_LOG))

processes: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal -m "$(PROCESS) and not timed" --durations=15

# These hold processes and the store to real times: after the others, beside searches alone.
timed: processes analysis
	HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -n 2 -m "$(SEARCH)" tests/metadata
	$(BIN)/pytest -m "$(PROCESS) and timed" --durations=15

# Maven's own repository does not bear two that fill it at once, which two workers would do.
export define RESOLVE_PEERS
from peers.apache_kafka import DELTA_POM, POM, SPARK_POM, classpath
for pom in (POM, SPARK_POM, DELTA_POM):
    classpath(pom)
endef

test-interop: $(READY)  ## other people's clients and Apache Kafka's tools (needs Java, Maven, kcat, Chromium)
	tests/prepare java maven kcat chromium
	@$(BIN)/python -c "$$RESOLVE_PEERS"
	$(BIN)/pytest -n 2 --dist loadfile -m "interop and not timed" --durations=15
	$(BIN)/pytest -m "interop and timed" --durations=15

# pytest's 5 is "nothing has this mark": a list may be empty, a failure may not pass.
# SLICE=1 to SLICE=4 runs a quarter of each list; which one a test is in depends on its id alone.
SLICED := $(if $(SLICE),--slice $(SLICE))
test-long: $(READY)  ## the full lists: hundreds of simulated runs, minutes of kills, the longest searches
	tests/prepare java
	HYPOTHESIS_PROFILE=exhaustive $(BIN)/pytest -n auto -m "$(LONG_SEARCH)" $(SLICED) --durations=15 || [ $$? -eq 5 ]
	$(BIN)/pytest -n 2 --dist load -m "$(LONG_PROCESS) and not timed" $(SLICED) --durations=15 || [ $$? -eq 5 ]
	$(BIN)/pytest -m "$(LONG_PROCESS) and timed" $(SLICED) --durations=15 || [ $$? -eq 5 ]

# make test-mutants ONLY=watermark-falls; SLICE=n for a few of them, in about three minutes.
test-mutants: $(READY)  ## plant known bugs one at a time: which test finds each, and in how many simulated runs
	PYTHONPATH=tests $(BIN)/python -m mutants.measure $(if $(ONLY),--only $(ONLY)) \
	  $(if $(SLICE),--slice $(SLICE) --within-s 120) $(if $(RUNS),--runs $(RUNS)) $(if $(ONLY)$(SLICE),,--write)

# make soak HOURS=8 FIRST=10000 MIX=disks; failing seeds are kept in soak-failures.txt.
HOURS ?= 8
soak: $(READY)  ## simulated runs, seed after seed, until the hours are over
	$(BIN)/python -m insync.sim.soak --hours $(HOURS) $(if $(FIRST),--first $(FIRST)) \
	  $(if $(MIX),--mix "$(MIX)") $(if $(RUNS),--runs $(RUNS))

check: $(READY)  ## format, lint, types, layers, unit tests: about a minute
	+@$(BESIDE_TYPES)

# mypy is one process, and the last tests of a run leave a core free: each fills the other's gaps.
BESIDE_TYPES := $(MAKE) --no-print-directory --jobs=2 types units

types: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

MARKS   := $(FAST)
units: $(READY)
	$(BIN)/pytest -n auto --dist worksteal -m "$(MARKS)" $(IGNORED)

# make bench ONLY=produce,latency PAIRS=10 KAFKA=no JSON=figures.json; QUICK=1 for a first look.
# make bench ONLY=trees TREE_A=. TREE_B=../other compares the brokers of two source trees.
bench: $(READY)  ## figures beside Apache Kafka
	@$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(PAIRS),--pairs $(PAIRS)) \
	  $(if $(QUICK),--quick) $(if $(filter no,$(KAFKA)),--no-kafka) $(if $(JSON),--json $(JSON))

docs: $(READY)  ## write docs/settings.md and docs/metrics.md from the code
	$(BIN)/python -m tools.reference

format: $(READY)  ## rewrite the code the way `check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The pinned file names versions and hashes, never the place they came from.
pins: $(READY)  ## pin the newest allowed versions (needs uv)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-strip-extras --no-emit-index-url --no-header --output-file requirements.txt

clean:  ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .import_linter_cache .peers $(DEMO) $(ANALYSIS_LOG) $(SEARCHES_LOG)

# Python compiles a module when it is first imported. That pip compiles none of them saves 12 of 42 s.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "insync needs Python 3.11 or newer; try: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing into $(VENV), about a minute; nothing outside it changes."
	@echo "1 of 3: a virtual environment"
	@$(PYTHON) -m venv $(VENV)
	@echo "2 of 3: the $$(grep -c '==' requirements.txt) packages of requirements.txt, 1.4 GB in all (PySpark is the largest)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.txt
	@echo "3 of 3: insync"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
