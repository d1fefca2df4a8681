# `make help` lists the targets. All of them use .venv, with the versions of constraints.txt.
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Only variables of make's command line count; environment variables of these names are ignored.
OWN_PYTHON := $(filter command%,$(origin PYTHON))
VARIABLES := ALGO ENV MODEL SEEDS STEPS DEVICE QUANTIZE ARGS RESUME RUNS SETS PYTHON PIP_OPTIONS
$(foreach name,$(VARIABLES),$(if $(filter command%,$(origin $(name))),,$(eval override $(name) :=)))
override PYTHON := $(or $(PYTHON),python3)
override PIP_OPTIONS := $(or $(PIP_OPTIONS),--quiet)
override SETS := $(or $(SETS),balance-scale breast-w pharyngitis airlines health-insurance spaceship-titanic)

# The shell reads their values from its environment ("$$NAME"), so that no value is executed as a command. Values of
# several words ($$ARGS) are split at spaces; `set -f` keeps * and [ as they are.
export $(VARIABLES)
OPTIONS = $(if $(ALGO),--algo "$$ALGO") $(if $(ENV),--env "$$ENV") $(if $(MODEL),--model "$$MODEL") \
	$(if $(SEEDS),--seeds "$$SEEDS") $(if $(STEPS),--steps "$$STEPS") $(if $(DEVICE),--device "$$DEVICE") \
	$(if $(QUANTIZE),--quantize "$$QUANTIZE") $$ARGS
TOKEN_LEVEL := poad,ntpo
ALL_LEVELS := poad,ntpo,twosome

UNSEEN = from lang_envs.virtualhome import UNSEEN_TASKS as tasks; print(*(f"VirtualHome-{task}-v0" for task in tasks))

.DEFAULT_GOAL := help
.PHONY: help setup bench bench-generalization bench-datascicoding paper report render throughput gpu-check test docs lint format clean

help:
	@echo "make bench        train and compare agents; writes tables, figures and a page into runs/"
	@echo "    ALGO=poad,ntpo,twosome   agents: poad ntpo twosome reinforce grpo rloo gigpo adrl-archer frozen softq dqn"
	@echo "                             random, or package.module:Class (default: poad)"
	@echo "    ENV=id                   environment (default: Overcooked-tomato-salad-v0)"
	@echo "                             list: $(BIN)/python -m lang_envs list"
	@echo "    MODEL=name               embedded (default), a Hugging Face name, or a folder"
	@echo "    SEEDS=3  STEPS=16384     runs of each agent, and environment steps of each run (default: by environment)"
	@echo "    DEVICE=cpu  QUANTIZE=4bit"
	@echo "    ARGS='--actor-lr 1e-4'   any other option: $(BIN)/python -m benchmarks run --help"
	@echo "    RESUME=runs/...          resume a benchmark that was stopped, with its own options"
	@echo "make bench-generalization"
	@echo "                  train on food preparation, then evaluate on eight household tasks without training on them"
	@echo "make bench-datascicoding"
	@echo "                  train agents to write programs for SETS='balance-scale airlines ...'; one page of the best"
	@echo "make paper        run the paper's experiments (hours); ARGS='--quick', '--dry-run', '--only curves'"
	@echo "make report RUNS='runs/... runs/...'"
	@echo "                  one HTML page of finished benchmarks"
	@echo "make render       render the pages and figures of benchmarks/results again from the stored numbers"
	@echo "make throughput   measure the speed of environments, credit, scoring and the sandbox"
	@echo "make gpu-check    measure what needs a GPU (ten minutes); PYTHON=... uses that Python without set-up"
	@echo "make test         run the tests"
	@echo "make docs         build the documentation into docs/_build/html"
	@echo "make lint         check with ruff and mypy"
	@echo "make format       format the code with ruff"
	@echo "make clean        delete what was built (not runs/)"

setup: $(INSTALLED)

$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	@echo "Setting up $(VENV); this takes a few minutes."
	@"$$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	"$$PYTHON" -m venv $(VENV)
	set -f; $(BIN)/python -m pip install $$PIP_OPTIONS -c constraints.txt -e ".[train,data,quantization,evaluation,render,tracking,docs,dev]"
	@touch $@

# A resumed benchmark keeps the options that it was started with.
IGNORED = $(strip $(foreach name,ALGO ENV MODEL SEEDS STEPS DEVICE QUANTIZE,$(if $($(name)),$(name))))

bench: $(INSTALLED)
	$(if $(and $(RESUME),$(IGNORED)),@echo "error: RESUME keeps the options of the stopped benchmark: omit $(IGNORED)" >&2; exit 1)
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
	$(BIN)/python -m benchmarks report $(FOLDER)/*/ --output $(FOLDER)/report.html

paper: $(INSTALLED)
	set -f; $(BIN)/python -m benchmarks paper $$ARGS

report: $(INSTALLED)
	$(BIN)/python -m benchmarks report $$RUNS $$ARGS

render: $(INSTALLED)
	$(BIN)/python -m benchmarks render benchmarks/results $$ARGS

throughput: $(INSTALLED)
	$(BIN)/python -m benchmarks.throughput.environments
	$(BIN)/python -m benchmarks.throughput.credit
	$(BIN)/python -m benchmarks.throughput.scoring
	$(BIN)/python -m benchmarks.throughput.growth
	$(BIN)/python -m benchmarks.throughput.features
	$(BIN)/python -m benchmarks.throughput.algorithms
	$(BIN)/python -m benchmarks.throughput.sandbox
	$(BIN)/python -m benchmarks.throughput.large

# PYTHON=... needs torch and the packages of `pip install '.[train]'`; parts whose packages are missing are skipped.
ifeq ($(OWN_PYTHON),)
gpu-check: $(INSTALLED)
	set -f; $(BIN)/python -m benchmarks.throughput.gpu_check $$ARGS
else
gpu-check:
	set -f; "$$PYTHON" -m benchmarks.throughput.gpu_check $$ARGS
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
