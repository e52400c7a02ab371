# Thin: each target sets up what it needs, then calls one command. `make` alone lists them.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help bench bench-resume bench-engine peers gpu-check learn test test-fast coverage chaos conformance setup setup-compile setup-test setup-data fetch repro lint types schemas fuzz handoff-check wheel-check image image-check pin-images recipes lock audit clean

WORKLOAD ?=
GPU ?=
LAUNCHES ?=
# A locked stack of containers/: in its image, or in an environment of its own.
STACK ?=
RUNTIME ?=
export RUNTIME
# Once .venv is there, its own Python keeps it up to date.
PYTHON ?= $(or $(wildcard .venv/bin/python),python3)
BIN := .venv/bin
NS := build/ns/miniverl

unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PYTHONNOUSERSITE := 1

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

bench: $(if $(STACK),,setup) ## run a workload and write its record and page [WORKLOAD=smollm2-grpo GPU=4080 LAUNCHES=5 STACK=cu130 RUNTIME=docker|podman|apptainer|venv]
	@$(if $(STACK),$(PYTHON) containers/launch.py '$(STACK)',$(BIN)/miniverl) bench $(WORKLOAD) \
	  $(if $(GPU),--gpu '$(GPU)') $(if $(LAUNCHES),--launches '$(LAUNCHES)')

bench-resume: setup ## what checkpoints and resuming cost: the default workload, and the table of docs/resume.md
	@$(BIN)/miniverl bench smollm2-grpo --record build/resume-cost.json
	@$(BIN)/python -m miniverl.bench.resume_cost build/resume-cost.json

# An environment of its own, and never in CI.
peers: setup ## fill .venv-peers with transformers, TRL and llama.cpp, which is compiled (about 20 minutes)
	@MINIVERL_VENV=.venv-peers $(PYTHON) containers/install.py peers

bench-engine: peers ## the engine beside its peers, and the table of docs/performance.md (about 25 minutes)
	@$(BIN)/miniverl peers --out build/peers.json; code=$$?; test $$code -le 1 || exit $$code; \
	$(BIN)/python -m miniverl.bench.peers.page build/peers.json docs/performance.md

image: ## build the image of a stack [STACK=cu130 RUNTIME=docker|podman|apptainer|buildah]
	@$(PYTHON) containers/image.py $(STACK)

image-check: ## build an image twice without an engine, compare digests, and run it (buildah, mmdebstrap; minutes) [STACK=cpu]
	@$(PYTHON) containers/reproduce.py $(STACK)

pin-images: ## pin what the base's tag points to now
	@$(PYTHON) containers/pin_images.py

recipes: ## write the Containerfiles and definitions again
	@$(PYTHON) containers/recipes.py

learn: setup ## does the policy learn? three seeds of smollm2-grpo-learn, and the table of docs/learning.md
	@for seed in 1 2 3; do \
	  $(BIN)/miniverl bench smollm2-grpo-learn --seed $$seed --record build/learn/seed-$$seed.json || exit; done
	@$(BIN)/python -m miniverl.bench.learning build/learn/seed-*.json

# Each worker takes a share of the tests, and then of what slower ones have left.
WORKERS ?= auto
PYTEST := $(BIN)/pytest --numprocesses=$(WORKERS) --maxprocesses=4 --dist=worksteal
test: setup-test fetch lint types ## run every test that this machine can run
	@$(PYTEST)

test-fast: setup-test fetch lint types ## without those marked slow: no whole runs, no processes, no upstream
	@$(PYTEST) -m 'not slow'

# Left out: what a full disk and a limit of half a second do to a process that coverage measures.
UNMEASURED := tests/bench/test_error_catalogue.py::test_a_full_disk_exits_3_and_leaves_no_part_of_a_file \
  tests/bench/test_runner.py::test_over_time_a_worker_is_asked_to_stop_and_the_reason_names_the_limit
coverage: setup-test fetch ## the lines of compiler and bench that the tests run, their processes included
	@rm -f .coverage .coverage.* && $(BIN)/coverage run -m pytest --numprocesses=$(WORKERS) --maxprocesses=4 \
	  --dist=worksteal $(addprefix --deselect=,$(UNMEASURED)) tests/bench tests/compiler tests/project tests/chaos
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage report

chaos: setup-test ## kill 450 runs wherever they are, resume them, compare every byte [CHAOS="--grpo 20 --seed 2"]
	@$(BIN)/python tests/chaos/chaos.py $(CHAOS)

# A foreign stack's Python, which needs nothing of ours; unset: ours.
DEVICE ?= cuda
GPU_PYTHON ?= $(BIN)/python
gpu-check: setup ## decoder, NF4, kill and resume, and the Qwen3 workloads on a device, on any torch 2.11 to 2.14 [DEVICE=cpu GPU_PYTHON=python3.12]
	@rm -rf build/gpu-check && $(BIN)/python tests/gpu/gpu_check.py --pack build/gpu-check/carry
	@$(GPU_PYTHON) tests/gpu/gpu_check.py --carry build/gpu-check/carry --out build/gpu-check/out --device '$(DEVICE)'
	@$(BIN)/python tests/gpu/gpu_check.py --records build/gpu-check/out --carry build/gpu-check/carry

conformance: setup-test fetch ## compare every function with the pinned upstream's, and write docs/conformance.md
	@$(BIN)/python tests/conformance/table.py

setup: ## fill .venv from the hash lock [MINIVERL_STACK=cpu|cu126|cu128|cu130 PYTHON=python3.11]
	@$(PYTHON) containers/install.py run

setup-compile: ## fill .venv with what `miniverl compile` needs: no torch
	@$(PYTHON) containers/install.py compile

setup-test: ## fill .venv with what the tests need too
	@$(PYTHON) containers/install.py test

setup-data: ## fill .venv with what generating prompts needs too (a C compiler builds one package)
	@$(PYTHON) containers/install.py data

fetch: setup ## fetch and verify the pinned inputs
	@$(BIN)/miniverl fetch

repro: setup ## the workload as a DVC pipeline: again only where something changed
	@test -e .git || $(BIN)/dvc config --local core.no_scm true
	@PATH="$(CURDIR)/$(BIN):$$PATH" dvc repro

lint: setup-test ## style and import rules
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo

types: setup-test $(NS) ## types
	@$(BIN)/mypy -p miniverl.engine -p miniverl.compiler -p miniverl.bench
	@cd containers && ../$(BIN)/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache *.py

handoff-check: setup-test fetch ## does verl itself go on from a bundle? [VERL_PYTHON=an interpreter with verl 0.9.0]
	@VERL_PYTHON='$(VERL_PYTHON)' $(BIN)/pytest -q tests/bench/handoff/prove_upstream.py

wheel-check: setup-test ## from the wheel alone, in an empty folder: measure, kill, resume, hand over (minutes) [WORKLOAD=smollm2-grpo-ci]
	@$(BIN)/python tests/project/wheel_check.py $(WORKLOAD)

schemas: setup ## generate the JSON Schemas in bench/schemas again
	@$(BIN)/python -m miniverl.bench.schema

fuzz: setup-test fetch ## 1,000 mutated launches: each is accepted or told what is wrong [FUZZ=1000]
	@MINIVERL_FUZZ='$(or $(FUZZ),1000)' $(BIN)/pytest -q tests/compiler/whole/test_mutations.py

lock: setup-test ## resolve pyproject.toml into containers/locks again [UPGRADE=--upgrade]
	@$(BIN)/python containers/lock.py $(UPGRADE)
	@$(BIN)/python containers/recipes.py

audit: setup-test ## known holes in the locked packages, by the OSV database (needs a network)
	@for lock in containers/locks/*.txt; do echo "$$lock" && $(BIN)/uv --quiet tool run --from pip-audit==2.9.0 \
	  pip-audit --disable-pip --require-hashes --vulnerability-service osv -r "$$lock" || exit; done

clean: ## remove what runs have written; .venv and the cache stay
	@rm -rf build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage*

# Type checkers do not follow an editable install: they get the packages under their installed names.
$(NS): pyproject.toml
	@mkdir -p $@ && for top in bench compiler engine; do ln -sfn ../../../$$top $@/$$top; done && touch $@
