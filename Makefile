# make sweep | make test | make lint | make bench        each makes the environment that it needs
#   PYTHON=python3.12   another interpreter for .venv (3.11 or newer)
#   TORCH_INDEX=URL     another index for torch, such as a CUDA build's

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
export TOKENIZERS_PARALLELISM := false

.PHONY: sweep test lint bench format clean

# The package and its bundled teacher.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "babeltune needs Python 3.11 or newer; try make PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "venv is missing; on Debian or Ubuntu: apt-get install python3-venv"; exit 2; }
	@start=$$(date +%s); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) \
	  --constraint constraints.txt torch && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[quickstart]' && \
	echo "installed in $$(( $$(date +%s) - start )) s"
	@touch $@

# What the tests and checks need besides.
$(VENV)/.developed: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The main job: search, leaderboard, promotion of the winner; fails if the promoted model does not pass its gates.
sweep: $(VENV)/.installed
	@start=$$(date +%s); \
	$(BIN)/babeltune submit search_spaces/quickstart.yaml && \
	$(BIN)/babeltune promote quickstart && \
	echo "MLflow pages: $(BIN)/babeltune ui" && \
	echo "sweep and promotion took $$(( $$(date +%s) - start )) s"

test: $(VENV)/.developed
	@$(BIN)/python -m pytest

lint: $(VENV)/.developed
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(VENV)/.developed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Each compares ours with a named peer and prints `NAME ratio <median> min <min> max <max> goal <goal>`.
bench: $(VENV)/.developed
	@for name in soft_loss train teacher_store trial_start; do $(BIN)/python -m benchmarks.$$name || exit 1; done

clean:
	rm -rf $(VENV) .babeltune .mypy_cache .ruff_cache .pytest_cache .hypothesis
