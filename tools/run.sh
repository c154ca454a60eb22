#!/usr/bin/env bash
# Print and run the training command of the README; in the environment that tools/env.sh made.
#
#   tools/run.sh [--show] [ARGUMENTS OF train.py]      RANKS=N for another number of ranks
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# One rank a GPU, 4 at most; 4 without a GPU.
gpus=$(python3 -c 'import pycuda.driver as cuda; cuda.init(); print(cuda.Device.count())' 2>/dev/null || echo 0)
if ((gpus >= 1 && gpus <= 3)); then default=$gpus; else default=4; fi

# `python` where it is the same interpreter, for that is what one types.
where='import os, sys; print(os.path.realpath(sys.executable), sys.prefix)'
python=python3
if [[ $(python -c "$where" 2>/dev/null) == "$(python3 -c "$where")" ]]; then python=python; fi

show=false
if [[ ${1:-} == --show ]]; then show=true; shift; fi
(($# > 0)) || set -- --hidden 512 --batch 3000
if [[ -n ${RANKS:-} && ! $RANKS =~ ^[1-9][0-9]*$ ]]; then
    echo "run: error: RANKS=$RANKS: give a number of ranks, 1 or more" >&2
    exit 2
fi
command=(mpirun -n "${RANKS:-$default}" "$python" train.py "$@")

if [[ $(dirname "$(command -v python3)") -ef .venv/bin && -z ${VIRTUAL_ENV:-} ]]; then
    echo "source .venv/bin/activate    # to type it yourself"
fi
echo "${command[*]}"
# No exec: a job counts its time from the start of mpirun, which would be this shell's and the set-up's.
$show || "${command[@]}"
