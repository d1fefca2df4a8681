# `make help` explains. Everything happens in .venv, with the versions of constraints.txt.
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Only `make bench STEPS=...` counts: the environment may hold names like these for other reasons.
OWN_PYTHON := $(filter command%,$(origin PYTHON))
VARIABLES := ALGO ENV MODEL SEEDS STEPS DEVICE QUANTIZE ARGS RESUME RUNS SETS PYTHON PIP_OPTIONS
$(foreach name,$(VARIABLES),$(if $(filter command%,$(origin $(name))),,$(eval override $(name) :=)))
override PYTHON := $(or $(PYTHON),python3)
override PIP_OPTIONS := $(or $(PIP_OPTIONS),--quiet)
override SETS := $(or $(SETS),balance-scale breast-w pharyngitis airlines health-insurance spaceship-titanic)

# The shell gets what they hold through its environment ("$$NAME"), so that nothing in it is read as a command. Where
# several words are meant ($$ARGS) they are separated by spaces; `set -f` leaves * and [ in them as they are.
export $(VARIABLES)
OPTIONS = $(if $(ALGO),--algo "$$ALGO") $(if $(ENV),--env "$$ENV") $(if $(MODEL),--model "$$MODEL") \
	$(if $(SEEDS),--seeds "$$SEEDS") $(if $(STEPS),--steps "$$STEPS") $(if $(DEVICE),--device "$$DEVICE") \
	$(if $(QUANTIZE),--quantize "$$QUANTIZE") $$ARGS
TOKEN_LEVEL := poad,ntpo
ALL_LEVELS := poad,ntpo,twosome

UNSEEN = from lang_envs.virtualhome import UNSEEN_TASKS as tasks; print(*(f"VirtualHome-{task}-v0" for task in tasks))

.DEFAULT_GOAL := help
.PHONY: help setup bench bench-generalization bench-datascicoding paper report throughput gpu-check test docs lint format clean

help:
	@echo "make bench        compare agents; sets up what it needs, draws curves and a table into runs/"
	@echo "    ALGO=poad,ntpo,twosome   agents: poad ntpo twosome random, or package.module:Class (default poad)"
	@echo "    ENV=id                   world: $(BIN)/python -m lang_envs list (default Overcooked-tomato-salad-v0)"
	@echo "    MODEL=name               embedded (default), a Hugging Face name, or a folder"
	@echo "    SEEDS=3  STEPS=16384     how many runs of each agent, and how long each (default: what the world takes)"
	@echo "    DEVICE=cpu  QUANTIZE=4bit"
	@echo "    ARGS='--actor-lr 1e-4'   anything else: $(BIN)/python -m benchmarks run --help"
	@echo "    RESUME=runs/...          go on with a run that was stopped"
	@echo "make bench-generalization"
	@echo "                  train on food preparation, then play eight household tasks nothing was trained on"
	@echo "make bench-datascicoding"
	@echo "                  write programs for SETS='balance-scale airlines ...', and put the best into one table"
	@echo "make paper        run the paper's experiments, hours of them; ARGS='--quick', '--dry-run', '--only curves'"
	@echo "make report RUNS='runs/... runs/...'"
	@echo "                  one HTML page of finished runs"
	@echo "make test         run the tests"
	@echo "make docs         build the documentation into docs/_build/html"
	@echo "make throughput   measure the speed of the worlds, of credit, of packed against naive scoring, of the sandbox"
	@echo "make gpu-check    measure what only a GPU can show, in ten minutes; PYTHON=... is used as it is, with no set-up"
	@echo "make lint         ruff and mypy"
	@echo "make format       let ruff put the code in order"
	@echo "make clean        remove what was built (not runs/)"

setup: $(INSTALLED)

$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	@echo "Setting up $(VENV); the first time this takes a few minutes."
	@"$$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	"$$PYTHON" -m venv $(VENV)
	set -f; $(BIN)/python -m pip install $$PIP_OPTIONS -c constraints.txt -e ".[train,data,quantization,evaluation,render,tracking,docs,dev]"
	@touch $@

bench: $(INSTALLED)
	set -f; $(BIN)/python -m benchmarks $(if $(RESUME),resume "$$RESUME" $$ARGS,run $(OPTIONS))

bench-generalization: override ALGO := $(or $(ALGO),$(ALL_LEVELS))
bench-generalization: override ENV := VirtualHome-food-preparation-v0
bench-generalization: $(INSTALLED)
	set -f; $(BIN)/python -m benchmarks $(if $(RESUME),resume "$$RESUME" $$ARGS,\
		run --transfer $$($(BIN)/python -c '$(UNSEEN)') $(OPTIONS))

bench-datascicoding: override ALGO := $(or $(ALGO),$(TOKEN_LEVEL))
bench-datascicoding: FOLDER := runs/DataSciCoding-$(shell date +%Y%m%d-%H%M%S)
bench-datascicoding: $(INSTALLED)
	set -ef; for name in $$SETS; do \
		$(BIN)/python -m benchmarks run --env "DataSciCoding-$$name-v0" --runs-dir $(FOLDER) $(OPTIONS); done
	$(BIN)/python -m benchmarks programs $(FOLDER)/*/ --output $(FOLDER)

paper: $(INSTALLED)
	set -f; $(BIN)/python -m benchmarks paper $$ARGS

report: $(INSTALLED)
	$(BIN)/python -m benchmarks report $$RUNS $$ARGS

throughput: $(INSTALLED)
	$(BIN)/python -m benchmarks.throughput.environments
	$(BIN)/python -m benchmarks.throughput.credit
	$(BIN)/python -m benchmarks.throughput.scoring
	$(BIN)/python -m benchmarks.throughput.growth
	$(BIN)/python -m benchmarks.throughput.features
	$(BIN)/python -m benchmarks.throughput.sandbox
	$(BIN)/python -m benchmarks.throughput.large

# The Python that is named must have torch and what `pip install '.[train]'` needs; parts that lack a package are skipped.
ifeq ($(OWN_PYTHON),)
gpu-check: $(INSTALLED)
	set -f; $(BIN)/python -m benchmarks.gpu_check $$ARGS
else
gpu-check:
	set -f; "$$PYTHON" -m benchmarks.gpu_check $$ARGS
endif

test: $(INSTALLED)
	set -f; $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $$ARGS

docs: $(INSTALLED)
	$(BIN)/python -m sphinx -n -W --keep-going -q docs docs/_build/html
	$(BIN)/python docs/check_pages.py docs/_build/html

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist docs/_build docs/generated *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find lang_envs trainers benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
