# `make bench`, `make explore` and the tests need only python3 with venv and pip: the rest is installed into .venv, once, and again
# when the packaging files or one of these two choices change. A choice holds for .venv until another one is named.
#   TF=tensorflow-cpu   or tensorflow
#   PYTHON=python3.12   the interpreter that .venv is made with, 3.10 to 3.13
# TORCH= (nothing) leaves PyTorch out, whose tests then are skipped: where the index has no CPU build it is gigabytes.
EXTRAS := jax,opencv,dali,metrics,plot,examples,recipes,test,docs,dev
TORCH ?= torch==2.13.0
STAMP := .venv/.installed

version_of = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)

installed_tf := $(shell cat $(STAMP) 2>/dev/null)
# Without both files, .venv is the rest of an interrupted set-up, and its python would install outside of it.
venv_python := $(if $(and $(wildcard .venv/pyvenv.cfg),$(wildcard .venv/bin/pip)),$(call version_of,.venv/bin/python))

ifndef TF
TF := $(or $(installed_tf),tensorflow-cpu)
endif
ifndef PYTHON
PYTHON := $(if $(venv_python),.venv/bin/python,python3)
endif
wanted_python := $(call version_of,$(PYTHON))

ifeq ($(filter tensorflow tensorflow-cpu,$(TF)),)
$(error TF=$(TF) is not a choice; take TF=tensorflow or TF=tensorflow-cpu)
endif

.PHONY: help bench test test-all explore check bench-check figures docs docs-serve dist clean FORCE

help:  ## show this list (default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
	@echo "options:    TF=tensorflow, PYTHON=python3.12, TORCH=, EXPLORE_MINUTES=, ARGS='arguments for fastfeed bench or pytest'"

bench: ARGS ?= --threads 1,4,8 --output build/bench
bench: $(STAMP)  ## measure feeding with 1, 4 and 8 threads; results in build/bench
	.venv/bin/fastfeed bench $(ARGS)

test: $(STAMP)  ## run the quick tests: every room and every promise, at most 5 minutes on 2 cores
	.venv/bin/python -m pytest --numprocesses 2 --dist worksteal -m "not slow" $(ARGS)

test-all: $(STAMP)  ## run all tests
	.venv/bin/python -m pytest --numprocesses 2 --dist worksteal $(ARGS)

# Rounds are begun until the minutes are over; -x ends the round of the first failure. Only the files that draw are read.
EXPLORE_MINUTES ?= 10
explore: $(STAMP)  ## give the tests of properties new examples for EXPLORE_MINUTES=10; print the first that fails
	@end=$$(($$(date +%s) + 60 * $(EXPLORE_MINUTES))); while test $$(date +%s) -lt $$end; do \
	    EXPLORE=1 .venv/bin/python -m pytest -q -x --numprocesses 2 --dist worksteal -m hypothesis $(ARGS) \
	        $$(grep -rl --include='test_*.py' '^from hypothesis import' tests) || exit 1; \
	done

check: $(STAMP)  ## lint, format, types and the shape of the code
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --strict fastfeed/
	.venv/bin/python -m pytest -q tests/test_shape.py

# Ratios to yardsticks of the same run; the reference is bench/results/check.json.
CHECK_SECONDS ?= 600
bench-check: $(STAMP)  ## compare the speed with the committed reference for CHECK_SECONDS=600; fail if more than 15 % is lost
	.venv/bin/python -m bench.check --seconds $(CHECK_SECONDS)

figures: $(STAMP)  ## write the tables and pictures of README and docs from the JSON in bench/results
	.venv/bin/python -m bench.figures

docs: $(STAMP)  ## build the site in build/site
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .venv/bin/mkdocs build --strict --quiet

docs-serve: $(STAMP)  ## build the site, and show it at 127.0.0.1:8000 while it is written
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .venv/bin/mkdocs serve --livereload

dist: $(STAMP)  ## build the sdist and the wheel in dist, and try them in a clean environment
	.ci/distribution dist .venv/bin/python

clean:  ## remove results and caches; .venv stays (rm -rf .venv to start afresh)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

ifneq ($(installed_tf) on $(venv_python),$(TF) on $(wanted_python))
$(STAMP): FORCE
endif

# The stamp goes first and comes back last, so that an interrupted installation is taken up again.
# The other TensorFlow goes too: both own the same files, and removing it later would break the chosen one.
$(STAMP): setup.cfg pyproject.toml
	@case "$(wanted_python)" in 3.10 | 3.11 | 3.12 | 3.13) ;; *) \
	    echo "fastfeed needs Python 3.10 to 3.13, but '$(PYTHON)' $(if $(wanted_python),is $(wanted_python),does not run);" \
	        "name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1;; esac
	@rm -f $@
	@test "$(venv_python)" = "$(wanted_python)" || { $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	    && rm -f .venv/pyvenv.cfg && $(PYTHON) -m venv --clear .venv; } || { \
	    echo "'$(PYTHON)' cannot make a virtual environment; install its venv module" \
	        "(on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "installing fastfeed, $(TF), jax and $(or $(TORCH),no torch) into .venv: two minutes and 4 GB the first time ..."
	@.venv/bin/python -m pip uninstall -qqy $(filter-out $(TF),tensorflow tensorflow-cpu)
	@$(if $(TORCH),.venv/bin/python -m pip install -q --disable-pip-version-check $(TORCH))
	@.venv/bin/python -m pip install -q --disable-pip-version-check -e '.[$(TF),$(EXTRAS)]'
	@echo $(TF) > $@
