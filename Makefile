# You need Python 3.11 or newer with pip. Each command first installs what it needs.
PYTHON ?= python3
ARGS ?=
ADDRESS ?= http://127.0.0.1:8000
RUN := .venv/bin/python

.PHONY: up test lint structure bench lock upgrade screenshot slide agent

up:  ## Start everything with a demo fleet, until Ctrl-C (PORT, BIND; TRNWATCH_DEBUG=1 reloads on save).
	@$(PYTHON) tools/setup.py run
	@$(RUN) manage.py up

test:  ## Run all tests. ARGS="tests/x.py -k word" runs some, on SQLite; PG=1 adds PostgreSQL.
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
	$(RUN) manage.py makemigrations --check --dry-run --skip-checks

structure:  ## Measure the size and structure of the code (ARGS=--names lists what was counted).
	@$(PYTHON) tools/setup.py dev
	@$(RUN) tools/structure.py $(ARGS)

bench:  ## Measure speed and compare with the budgets and with other programs.
	@$(PYTHON) tools/setup.py dev
	@$(RUN) -m bench $(ARGS)

agent:  ## Build the agent for a node, one file: build/trnwatch-agent.pyz.
	@$(PYTHON) tools/agent.py

lock:  ## Update the lock files after a change to requirements/*.in or package.json.
	@$(PYTHON) tools/setup.py lock

upgrade:  ## Update every locked version to the newest one allowed.
	@$(PYTHON) tools/setup.py lock --upgrade

screenshot:  ## Take a screenshot of the overview of a running trnwatch (ADDRESS).
	@$(PYTHON) tools/setup.py dev
	@$(RUN) tools/screenshot.py "$(ADDRESS)"

slide:  ## Print a trial of a running trnwatch on one A4 page (ADDRESS, TRIAL, FILE.pdf or .png).
	@$(PYTHON) tools/setup.py dev
	@$(RUN) tools/slide.py "$(ADDRESS)" "$(TRIAL)" "$(FILE)"
