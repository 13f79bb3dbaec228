# Needs Python 3.11 or newer with pip; each command sets up what it needs first.
PYTHON ?= python3
ARGS ?=
ADDRESS ?= http://127.0.0.1:8000
RUN := .venv/bin/python

.PHONY: up test lint bench lock upgrade screenshot slide agent

up:  ## Run everything, with a living demo fleet, until Ctrl-C (PORT, BIND).
	@$(PYTHON) tools/setup.py run
	@$(RUN) manage.py up

test:  ## Run the tests; some of them, on SQLite: ARGS="tests/x.py -k word", PG=1: on PostgreSQL, too.
	@$(PYTHON) tools/setup.py dev
	@$(RUN) tools/machine.py
	@$(RUN) tools/test.py $(ARGS)

lint:  ## Check style, types, imports and templates.
	@$(PYTHON) tools/setup.py dev
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	.venv/bin/lint-imports
	find templates -name '*.html' -print0 | xargs -0 .venv/bin/djade --check --target-version 5.2
	$(RUN) manage.py check --fail-level WARNING
	$(RUN) manage.py makemigrations --check --dry-run

bench:  ## Measure against the budgets, beside the peers.
	@$(PYTHON) tools/setup.py dev
	@$(RUN) -m bench $(ARGS)

agent:  ## Make the one file that a node needs, build/trnwatch-agent.pyz.
	@$(PYTHON) tools/agent.py

lock:  ## Write the lock files anew after a change to requirements/*.in or package.json.
	@$(PYTHON) tools/setup.py lock

upgrade:  ## Move every locked version to the newest one allowed.
	@$(PYTHON) tools/setup.py lock --upgrade

screenshot:  ## Photograph the overview of a trnwatch that runs (ADDRESS).
	@$(PYTHON) tools/setup.py dev
	@$(RUN) tools/screenshot.py "$(ADDRESS)"

slide:  ## Print a trial of a trnwatch that runs on one A4 page (ADDRESS, TRIAL, FILE.pdf or .png).
	@$(PYTHON) tools/setup.py dev
	@$(RUN) tools/slide.py "$(ADDRESS)" "$(TRIAL)" "$(FILE)"
