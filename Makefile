# Each target sets up what it needs, from nothing: a virtual environment, Python packages, system packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP = scripts/pip-install $(VENV)
# The tests start baton thousands of times: its modules are compiled once, not each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-agents truth test-systems test-lowest lock lint docs screenshots reference bench peers crash security guards soak clean

demo: $(VENV)/.installed
	@scripts/system-packages tmux git
	$(BIN)/baton demo
	@echo 'First, so that the shell finds baton:  . $(BIN)/activate'

test: $(VENV)/.dev-installed system-packages lint
	$(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder

# With the real agent programs from npm (two gigabytes), against a stand-in for their models on this machine. They see no
# network but loopback, where the system allows that; otherwise the first line says so.
test-agents: $(VENV)/.dev-installed system-packages .agents/.installed .agents/.python-installed
	PATH="$(CURDIR)/.agents/bin:$(CURDIR)/.agents/node_modules/.bin:$$PATH" scripts/loopback-only $(BIN)/python -m pytest tests/agents

# How often the activity and the outcome of a job are right, with the real programs, one after the other; AGENT="codex
# qwen" and ROWS="T3 T8" choose. Writes the newest results to docs/truth.md.
truth: $(VENV)/.dev-installed system-packages .agents/.installed
	PATH="$(CURDIR)/.agents/node_modules/.bin:$$PATH" scripts/loopback-only $(BIN)/python tests/truth/truth.py $(ROWS) \
	    $(AGENT:%=--agent %) --page docs/truth.md

# The two commands of the README on other systems, as an ordinary user, with each Python that they have, and here with each
# Python on PATH and in pyenv; SYSTEMS="sid:3.15 here" chooses. Needs root. About 15 minutes for each Python.
test-systems:
	@scripts/system-packages debootstrap
	$(PYTHON) scripts/test_systems.py $(SYSTEMS)

# With the lowest versions that pyproject.toml allows, in build/lowest; TESTS="tests/contract" chooses.
test-lowest: system-packages
	$(MAKE) VENV=build/lowest build/lowest/.lowest-installed
	build/lowest/bin/python -m pytest -n 4 --dist worksteal $(TESTS)

lint: $(VENV)/.dev-installed
	$(BIN)/ruff check src tests bench scripts skills
	$(BIN)/ruff format --check src tests bench scripts skills
	$(BIN)/mypy

# Every promise at its full size; what each held at stands in the table at the end.
FULL := $(BIN)/python -m pytest -n 4 --dist worksteal --full --timeout 7200

security: $(VENV)/.security-installed system-packages
	$(BIN)/python -m pip check
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src scripts skills
	$(BIN)/python tests/fuzz/fuzz.py --seconds 30
	$(FULL) tests/security tests/unit/test_wire.py tests/unit/test_fuzz.py tests/system/test_audit_log.py \
	    tests/integration/test_subscriber.py

crash: $(VENV)/.dev-installed system-packages
	$(FULL) tests/crash tests/simulation tests/unit/test_watch.py tests/contract/test_against_model.py \
	    tests/contract/test_directory.py

docs: $(VENV)/.dev-installed
	$(BIN)/python scripts/reference.py --check
	$(BIN)/mkdocs build --strict --site-dir build/site

# The pictures of the boards in docs/images, of jobs that the script makes up.
screenshots: $(VENV)/.dev-installed system-packages
	$(BIN)/python scripts/screenshots.py

reference: $(VENV)/.dev-installed
	$(BIN)/python scripts/reference.py

guards: $(VENV)/.dev-installed system-packages
	$(BIN)/python tests/guards/remove_guards.py

soak: $(VENV)/.dev-installed system-packages
	$(BIN)/python tests/soak/soak.py --minutes 30

# Beside other programs, which pip installs into environments below build/peers; ten minutes.
peers: $(VENV)/.dev-installed
	@scripts/system-packages tmux git postgres redis-server
	$(BIN)/python bench/peers.py

bench: $(VENV)/.dev-installed system-packages
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/registry.py
	$(BIN)/python bench/events.py
	$(BIN)/python bench/directory.py
	$(BIN)/python bench/delegate.py
	$(BIN)/python bench/sessions.py
	$(BIN)/python bench/requests.py
	$(BIN)/python bench/worktrees.py
	$(BIN)/python bench/board.py
	$(BIN)/python bench/mcp.py

.PHONY: system-packages
system-packages:
	@scripts/system-packages tmux git postgres strace faketime bindfs mosquitto mosquitto_sub node openssl ss zsh fish \
	    chromium chromedriver ps

# Half an environment is none.
.DELETE_ON_ERROR:
$(VENV)/bin/python:
	@scripts/check-python '$(PYTHON)' '$(or $(MAKECMDGOALS),demo)'
	$(PYTHON) -m venv $(VENV)

# What a user gets: the newest versions that pyproject.toml allows.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) 'baton and the packages of pyproject.toml are' --editable '.[board]'
	@touch $@

# What every developer gets: the versions of requirements-dev.txt, whose files pip compares with their hashes. All of it
# but the fuzzer, half as large as everything else.
$(VENV)/.dev-installed: requirements-dev.txt pyproject.toml | $(VENV)/bin/python
	sed '/^atheris/,/[^\]$$/d' $< | $(PIP) 'the packages of $< are' --require-hashes --requirement /dev/stdin
	$(PIP) 'baton is' --no-deps --no-build-isolation --editable .
	@touch $@ $(VENV)/.installed

$(VENV)/.security-installed: requirements-dev.txt $(VENV)/.dev-installed
	$(PIP) 'the packages of $< are' --require-hashes --requirement $<
	@touch $@

$(VENV)/.lowest-installed: requirements-lowest.txt $(VENV)/.dev-installed
	$(PIP) 'the packages of $< are' --require-hashes --no-deps --requirement $<
	@touch $@

# Renews the locked versions, and their hashes, to the newest ones. It downloads the newest uv, of which nothing else here
# makes use. Read what it changed, run `make test`, commit.
LOCK = build/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
    --no-emit-index-url --annotation-style line --all-extras pyproject.toml
lock: | $(VENV)/bin/python
	$(BIN)/python -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check --upgrade uv
	{ echo '# The development tools, and all that baton needs: `make lock` writes this file, `make test` installs it.'; \
	    $(LOCK) --group dev --group security --group fuzz; } >build/requirements-dev.txt
	{ echo '# The lowest versions that pyproject.toml allows: `make lock` writes this file, `make test-lowest` installs it.'; \
	    $(LOCK) --resolution lowest-direct; } >build/requirements-lowest.txt
	mv build/requirements-dev.txt build/requirements-lowest.txt .

.agents/.installed: tests/agents/package.json
	@scripts/system-packages npm
	@mkdir -p .agents
	cp tests/agents/package.json .agents/
	npm install --prefix .agents --no-audit --no-fund --no-package-lock --loglevel error
	@touch $@

# An agent that needs another Python than this one is not tested.
.agents/.python-installed: tests/agents/requirements.txt
	$(PYTHON) -m venv .agents/python
	-.agents/python/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/agents/requirements.txt
	@mkdir -p .agents/bin
	ln -sf ../python/bin/aider .agents/bin/aider
	@touch $@

clean:
	rm -rf $(VENV) .agents .mypy_cache .ruff_cache .hypothesis dist build
