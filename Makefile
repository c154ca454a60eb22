# Everything a user or CI does with a clone. `make help` lists the targets; tools/env.sh prepares the environment.
#
#   make run RANKS=2 ARGS="--hidden 512,256 --epochs 3"
#   make test ARGS="-k gemm -x"
#   make bench ARGS="gemm conv"
#   make report ARGS="scaling plans"

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup run test test-long bench report kernels lint clean

RANKS ?=
export RANKS

# The tests start Python hundreds of times: it keeps its bytecode, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-9s %s\n' "$$name" "$$text"; done

setup:  ## prepare the environment that run and test use: PATH's own where it has all, else .venv
	@bash tools/env.sh run bash tools/run.sh --show

run:  ## train on the embedded digits: mpirun -n 4 python train.py --hidden 512 --batch 3000
	@bash tools/env.sh run bash tools/run.sh $(ARGS)

# One process more than cores shares the tests, since some wait, up to 9; ARGS=-n0 runs them in one, for a debugger.
PYTEST = python3 -m pytest -n $(shell cores=$$(nproc); echo $$(((cores < 8 ? cores : 8) + 1))) --dist worksteal

test:  ## run the tests, those for a GPU where there is one
	@bash tools/env.sh report $(PYTEST) $(ARGS)

test-long:  ## the same, and those that take minutes, many more random cases among them
	@PYRT_LONG=1 bash tools/env.sh report $(PYTEST) $(ARGS)

bench:  ## measure against cuBLAS, PyTorch and JAX, where they are installed; needs an NVIDIA GPU
	@bash tools/env.sh run python3 -m bench $(ARGS)

report:  ## all studies, on the GPUs or the CPU, and their page: report/index.html
	@bash tools/env.sh report python3 -m experiments $(ARGS)

kernels:  ## compile every kernel for sm_75, sm_80 and sm_90a (needs nvcc, no GPU)
	@bash tools/env.sh kernels python3 tools/compile_kernels.py $(ARGS)

lint:  ## ruff check, ruff format --check, mypy
	@bash tools/env.sh lint sh -ec 'python3 -m ruff check .; python3 -m ruff format --check .; python3 -m mypy'

clean:  ## remove what make made: .venv, caches, build products
	@bash tools/clean.sh
