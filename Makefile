# Two commands are enough: make demo, make test. Each sets up what it needs, once.
VENV ?= .venv
JOBS ?= 2
PYTHON_IN_VENV = $(abspath $(VENV))/bin/python
ALKIT = $(PYTHON_IN_VENV) -m alkit
NOTEBOOKS = $(wildcard notebooks/*.ipynb)
ATLAS = $(filter-out notebooks/0% notebooks/1%,$(NOTEBOOKS))
STRIP = $(PYTHON_IN_VENV) -m nbstripout --keep-count --drop-empty-cells \
    --extra-keys "metadata.widgets metadata.papermill cell.metadata.papermill cell.metadata.execution"

# this checkout's alkit, also in an environment that serves several checkouts
export PYTHONPATH := $(CURDIR)
export PATH := $(abspath $(VENV))/bin:$(PATH)
export JUPYTER_PLATFORM_DIRS := 1

.DEFAULT_GOAL := help
.PHONY: help demo test soak flower browser gpu install lock lab run sweep site outputs strip lint clean unit notebooks

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Variables: VENV=path of an environment, NB=notebook, PRESET=name, P='name=value ...', RECORD=1, JOBS=2"

demo: install  ## nine methods on one network, in one table: accuracy, waits, time, memory (3 minutes)
	@$(ALKIT) run notebooks/15_all_methods.ipynb --preset teach

test: install  ## lint, unit tests and every notebook
	@$(MAKE) --no-print-directory -j2 lint unit  # types are checked by one core alone
	@$(MAKE) --no-print-directory notebooks

unit: install
	@$(PYTHON_IN_VENV) -m pytest tests -n $(JOBS) --durations=20 -m "not soak and not machines and not browser and not gpu"

notebooks: install
	@$(PYTHON_IN_VENV) -m pytest notebooks --nbval-lax --nbval-current-env --nbval-cell-timeout 300 \
	    --nbval-sanitize-with .ci/sanitize.cfg -n $(JOBS) --dist loadfile

soak: install  ## the long tests: torchrun, task pages, the simulated accelerator
	@$(PYTHON_IN_VENV) -m pytest tests -n $(JOBS) -m "soak or machines" && $(PYTHON_IN_VENV) .ci/soak.py --write

flower:  ## fed and splitfed as a Flower app, in an environment of its own: the same weights
	@test -f .venv-flower/installed || (python3 -m venv --clear .venv-flower && \
	    .venv-flower/bin/python -m pip install -q -r .ci/flower.txt -e . && touch .venv-flower/installed)
	@for method in fed splitfed; do .venv-flower/bin/python docs/tasks/flower.py $$method || exit 1; done

browser: install  ## the live schedules in a real browser; skips where there is no Chromium
	@$(PYTHON_IN_VENV) -m pytest tests/browser -m browser -rs

gpu: install  ## what only an accelerator can show; skips where there is none
	@$(PYTHON_IN_VENV) -m pytest tests/gpu -m gpu -rs || test $$? -eq 5

install:  ## make the environment in VENV from the lock of environment.yml, if it is not there
	@sh .ci/install "$(VENV)"

lock:  ## write .ci/requirements.lock anew, after a change in environment.yml: needs Python 3.11
	@$(or $(PYTHON),python3.11) .ci/lock.py

lab: install  ## open JupyterLab on the first notebook of the course
	@$(PYTHON_IN_VENV) -m jupyterlab notebooks/01_what_waits.ipynb

run: install  ## run one notebook: NB=notebooks/20_speed.ipynb PRESET=cpu P='seed=1' RECORD=1
	@$(ALKIT) run $(NB) $(if $(PRESET),--preset $(PRESET)) $(foreach p,$(P),-p $(p)) $(if $(RECORD),--record)

sweep: install  ## run a grid of runs, resumable: SWEEP=notebooks/params/NAME.yaml JOBS=2
	@$(ALKIT) sweep $(SWEEP) --jobs $(JOBS) $(if $(RECORD),--record)

site: install  ## pages of the course, RESULTS and docs, in build/site/html: no network is needed
	@$(PYTHON_IN_VENV) .site/build.py --jobs $(JOBS)

outputs: install  ## execute the course with its preset teach, and keep what it shows in its files
	@$(PYTHON_IN_VENV) notebooks/outputs.py

strip: install  ## strip the outputs of the atlas, except cells tagged keep_output
	@$(STRIP) $(ATLAS)

lint: install  ## check style, format and types, and that the outputs of the atlas are stripped
	@$(PYTHON_IN_VENV) -m ruff check . && $(PYTHON_IN_VENV) -m ruff format --check .
	@$(PYTHON_IN_VENV) -m mypy
	@$(if $(ATLAS),$(STRIP) --verify $(ATLAS))

clean:  ## remove the environment, runs and caches; data and records stay
	rm -rf .venv .venv-flower runs build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
