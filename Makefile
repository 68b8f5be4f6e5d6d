# make sweep | test | test-fast | matrix | chaos | long | pages | lint | docs | bench     each makes the environment that it needs
# make table TABLE=mao_terms                             a table of a paper on real text, and its page in docs/tables
#   PYTHON=python3.12   another interpreter for .venv (3.11 or newer)
#   TORCH_INDEX=URL     another index for torch, such as a CUDA build's

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint $(CONSTRAINTS)
export TOKENIZERS_PARALLELISM := false
# Every test and sweep starts dozens of Pythons: what one has compiled, the others read.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: sweep test test-fast matrix chaos long pages lint style types layers prose site lines docs bench table requirements format clean

# Without Debian's python3-venv there is no pip to make one with: its wheel comes from the package index, checked.
define GET_PIP
import hashlib, os, re, subprocess, sys, urllib.parse, urllib.request
index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
page = urllib.request.urlopen(index, timeout=60).read().decode()
link = re.findall(r'href="([^"]*pip-[0-9.]+-py3-none-any\.whl#sha256=([0-9a-f]{64}))"', page)[-1]
wheel = urllib.request.urlopen(urllib.parse.urljoin(index, link[0]), timeout=60).read()
assert hashlib.sha256(wheel).hexdigest() == link[1], "the wheel of pip is not the one that the index names"
path = os.path.join(sys.prefix, os.path.basename(link[0].partition("#")[0]))
open(path, "wb").write(wheel)
subprocess.run([sys.executable, path + "/pip", "install", "--quiet", "--no-index", path], check=True)
os.remove(path)
endef
export GET_PIP

# An installation is a stamp; another TORCH_INDEX is another one. `dev` holds what tests and checks need besides.
INSTALLED := $(VENV)/.installed$(subst /,_,$(subst :,_,$(TORCH_INDEX)))
DEVELOPED := $(INSTALLED).dev

# What a sweep imports, so that it is compiled once and now; pip would compile four times as much.
COMPILED := babeltune.sweep.driver.run, babeltune.sweep.workers.run_trial, babeltune.promotion.promote, mlflow.server, sentence_transformers

define INSTALL
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "babeltune needs Python 3.11 or newer; try make PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) 2>/dev/null || \
	  { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(BIN)/python -c "$$GET_PIP"; } || \
	  { rm -rf $(VENV); echo "no environment can be made; on Debian or Ubuntu: apt-get install python3-venv"; exit 2; }
	@start=$$(date +%s); \
	$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) --force-reinstall --no-deps torch &&) \
	$(PIP) --editable '.[$(1)]' && \
	$(BIN)/python -c 'import $(COMPILED)' && \
	echo "installed in $$(( $$(date +%s) - start )) s"
	@touch $(INSTALLED) $@
endef

# The package and its bundled teacher.
$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	$(call INSTALL,quickstart)

$(DEVELOPED): pyproject.toml $(CONSTRAINTS)
	$(call INSTALL,dev)

# The main job: search, leaderboard, promotion of the winner; fails if the promoted model does not pass its gates.
sweep: $(INSTALLED)
	@start=$$(date +%s); \
	$(BIN)/babeltune submit search_spaces/quickstart.yaml && \
	$(BIN)/babeltune promote quickstart && \
	echo "MLflow pages: $(BIN)/babeltune ui" && \
	echo "sweep and promotion took $$(( $$(date +%s) - start )) s"

test: $(DEVELOPED)
	@$(BIN)/python -m pytest

# The inner loop: tests that start no Ray, server or other process, in a minute or two.
test-fast: $(DEVELOPED)
	@$(BIN)/python -m pytest -m fast --durations=5

# Every fault of the matrix, and what each cost as a table. Its tests wait much, so that three share two cores.
chaos: $(DEVELOPED)
	@BABELTUNE_FAULT_TABLE=docs/measured/faults.json $(BIN)/python -m pytest -m chaos --numprocesses=3 --dist=worksteal

# What `make test` leaves out for its time: jobs, nodes that come and go, object stores, worker groups that are killed or leak.
long: $(DEVELOPED)
	@$(BIN)/python -m pytest -m long --numprocesses=2

# The tests of pages, in Chromium, which `make test` skips where there is none.
SHOTS := build/screenshots
pages: $(DEVELOPED)
	@command -v chromium || command -v chromium-browser || \
	  { echo "there is no Chromium; on Debian: apt-get install chromium"; exit 2; }
	@rm -rf $(SHOTS)
	@BABELTUNE_SCREENSHOTS=$(SHOTS) $(BIN)/python -m pytest -m needs_chromium && echo "screenshots: $(SHOTS)"

# The fast tests on each Python, with the newest and the lowest versions that pyproject.toml allows. OVERRIDES=FILE names
# versions for every environment, such as a torch that is built here.
PYTHONS ?= 3.11 3.12 3.13
RESOLUTIONS ?= highest lowest-direct
OVERRIDES ?=
matrix: $(INSTALLED)
	@$(PIP) uv==0.13.9
	@set -e; for python in $(PYTHONS); do for versions in $(RESOLUTIONS); do \
	  place=build/matrix/$$python-$$versions; mkdir -p $$place; echo "Python $$python, versions: $$versions"; \
	  $(BIN)/uv pip compile --quiet --no-header --no-annotate --python-version $$python --resolution $$versions \
	    $(if $(OVERRIDES),--override $(OVERRIDES)) $(if $(TORCH_INDEX),--index $(TORCH_INDEX) --index-strategy unsafe-best-match) \
	    --extra dev --output-file $$place/constraints.txt pyproject.toml; \
	  $(MAKE) --no-print-directory test-fast PYTHON=python$$python VENV=$$place/venv CONSTRAINTS=$$place/constraints.txt; \
	done; done

# Two checks at a time, the longest first.
lint: $(DEVELOPED)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types prose site layers style lines

types:
	@$(BIN)/mypy

prose:
	@$(BIN)/python tests/prose.py

site:
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

layers:
	@$(BIN)/lint-imports --no-logo

# Only an issue raises the budget.
LINES := 63746
lines:
	@count=$$(find platform methods -name '*.py' -exec cat {} + | wc -l); test $$count -le $(LINES) || \
	  { echo "platform and methods have $$count lines, and the budget is $(LINES): delete what a change replaces"; exit 1; }

style:
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

# The site, with the reference that is generated from the code, in build/site.
docs: $(DEVELOPED)
	@$(MAKE) --no-print-directory site && echo "build/site/index.html"

format: $(DEVELOPED)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Each compares ours with a named peer. One table at the end; it fails if a goal was missed or a benchmark crashed.
bench: $(DEVELOPED)
	@$(BIN)/python -m benchmarks --json docs/measured/benchmarks.json

# A paper's table on real text: its sweeps, its record and its page. What is there is not run again.
table: $(DEVELOPED)
	@$(BIN)/python -m benchmarks.tables $(TABLE)

# The packages of the images, with the hashes of their files: after each change of pyproject.toml or constraints.txt.
COMPILE = $(BIN)/uv pip compile --quiet --no-header --no-annotate --generate-hashes --only-binary :all: --python-version 3.12 \
  --python-platform x86_64-manylinux_2_28 --constraint constraints.txt
requirements: $(INSTALLED)
	@$(PIP) uv==0.13.9
	@$(COMPILE) $(if $(TORCH_INDEX),--index $(TORCH_INDEX)) --extra quickstart --extra translation --extra s3 --extra jobs --extra serve \
	  --output-file requirements.txt pyproject.toml
	@$(COMPILE) --output-file clusters/mlflow/requirements.txt clusters/mlflow/requirements.in

clean:
	rm -rf $(VENV) .babeltune .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
