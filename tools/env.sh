#!/usr/bin/env bash
# Run a command in the project's environment, which is made first where needed.
#
#   tools/env.sh run|report|kernels|lint COMMAND...
#
# PATH's own python3 and mpirun are used as they are when they have all that is needed: then nothing is
# installed and no network touched. Else a .venv is made beside this folder, once, with pip's own settings.
#   run      what training needs: also an MPI that works, and pycuda where there are a GPU and nvcc
#   report   the same, pytest, what draws figures, and formats of files: what the report and the tests need
#   kernels  the same without MPI: what compiling kernels needs
#   lint     the same without MPI, and ruff and mypy
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cd "$(pwd -P)"  # one name for the folder, whichever links led here

mode=$1
shift
needs_mpi=false
case $mode in run | report) needs_mpi=true ;; esac

say() { echo "setup: $*" >&2; }
fail() { say "error: $*"; exit 1; }

# Open MPI refuses root, and more ranks than cores, unless told otherwise (4.x by OMPI_, 5.x by PRTE_ names).
if [[ $(id -u) == 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}"
# A single process (pytest) needs no daemon of Open MPI 4.x, which its PyPI package cannot find.
export OMPI_MCA_ess_singleton_isolated="${OMPI_MCA_ess_singleton_isolated:-1}"

# CUDA's compiler is often installed without being on PATH.
if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
    PATH=$PATH:/usr/local/cuda/bin
fi

has_driver() {
    if [[ -e /proc/driver/nvidia/version && $(/sbin/ldconfig -p 2>/dev/null) == *libcuda.so.1* ]]; then
        return 0
    fi
    [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]]
}

if [[ $mode == kernels ]] && ! command -v nvcc >/dev/null; then
    fail "no nvcc on PATH or in /usr/local/cuda/bin: install the CUDA toolkit to compile kernels"
fi

extras=(nn)
cuda=""
if has_driver; then
    if command -v nvcc >/dev/null; then
        [[ $mode == lint ]] || extras+=(gpu)
        cuda=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    else
        no_nvcc="there is an NVIDIA driver but no nvcc: without the CUDA toolkit the GPU is not used"
    fi
fi
case $mode in
    lint) extras+=(lint) ;;
    report) extras+=(test report files) ;;
esac

# Does PATH's mpirun start ranks of the library that PATH's mpi4py loads? One of another MPI starts N jobs of one rank,
# or brings its own library, which a single process (pytest) then does not find.
# (Without /dev/null an mpirun that reads the terminal would be stopped: timeout puts it in the background.)
mpirun_works() {
    local alone together
    local hello='from mpi4py import MPI; w = MPI.COMM_WORLD; w.rank or print(w.size, repr(MPI.Get_library_version()))'
    command -v mpirun >/dev/null || return 1
    alone=$(timeout 60 python3 -c "$hello" </dev/null 2>/dev/null) || return 1
    together=$(timeout 60 mpirun -n 2 python3 -c "$hello" </dev/null 2>/dev/null) || return 1
    [[ $together == "2${alone#1}" ]]
}

# Is PATH's own environment enough? Sets why_not when it isn't.
path_is_enough() {
    local missing
    if ! missing=$(python3 tools/requirements.py --missing "${extras[@]}" 2>/dev/null); then
        # A Python that is too old, or none, cannot even run the script.
        why_not="python3 on PATH lacks ${missing:-Python 3.11 or newer}"
        why_not=${why_not//$'\n'/, }
        return 1
    fi
    if $needs_mpi && ! mpirun_works; then
        why_not="mpirun on PATH is missing, or does not belong to the MPI library that mpi4py loads"
        return 1
    fi
}

# The Python for .venv: PATH's python3, else the newest beside it that is new enough. Prints its name.
choose_python() {
    local minor name found=""
    for name in python3 $(for minor in {20..11}; do echo "python3.$minor"; done); do
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        if "$name" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$name"
            return
        fi
        found=${found:-$("$name" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')}
    done
    if [[ -n $found ]]; then
        fail "$found cannot make a virtual environment; on Debian or Ubuntu: apt install $found-venv"
    fi
    fail "Python 3.11 or newer is needed; PATH has $(python3 --version 2>/dev/null || echo no python3)"
}

# .venv/pyrt-setup says what .venv was made for, then which groups of requirements it has.
stamp=.venv/pyrt-setup
has() { grep -qxF "$1" "$stamp"; }
key() {
    echo "for $PWD, $(.venv/bin/python3 --version 2>&1), CUDA ${cuda:-none}," \
        "requirements $(.venv/bin/python3 tools/requirements.py nn test gpu lint mpi report files 2>/dev/null | cksum)"
}

install() {  # GROUP: core, or an extra
    local group=$1 names=("$1") requirements nvcc=""
    ! has "$group" || return 0
    [[ $group != core ]] || names=()
    mapfile -t requirements < <(python3 tools/requirements.py "${names[@]}")
    if [[ $group == gpu ]]; then
        requirements+=("cuda-bindings==$cuda.*")
        # pycuda is built from source, and looks for CUDA beside the nvcc on PATH: that may be a link or a wrapper.
        nvcc=$(nvcc --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=\(.*\)/\1\/bin:/p') || true
    fi
    say "installing the $group packages of pyproject.toml into .venv (once)"
    PATH=$nvcc$PATH python3 -m pip install --no-user --quiet --disable-pip-version-check "${requirements[@]}" >&2 ||
        fail "pip could not install them: its own message is above"
    echo "$group" >>"$stamp"
}

use_venv() {
    local group mpirun
    PATH=${PATH//"$PWD/.venv/bin:"/}  # where it is active: it cannot make itself anew
    if [[ -e .venv && ! -e $stamp ]]; then
        fail ".venv was not made by make: activate it once it has what pyproject.toml asks for, or move it away"
    fi
    if [[ ! -e $stamp ]] || ! has "$(key)"; then
        local python
        python=$(choose_python)
        say "$why_not"
        [[ -z ${no_nvcc:-} ]] || say "$no_nvcc"
        say "making .venv with $("$python" --version) ($(command -v "$python"))"
        rm -rf .venv
        mkdir .venv
        : >"$stamp"
        "$python" -m venv .venv || fail "$python -m venv failed: its own message is above"
        key >>"$stamp"
    fi
    PATH=$PWD/.venv/bin:$PATH
    for group in core "${extras[@]}"; do
        install "$group"
    done
    if $needs_mpi && ! has mpi; then
        mpirun="mpirun $(command -v mpirun || true)"
        if ! has "$mpirun"; then
            if mpirun_works; then
                echo "$mpirun" >>"$stamp"
            else
                say "no mpirun on PATH belongs to the MPI library that mpi4py loads: mpich is added"
                install mpi
                hash -r
                mpirun_works || fail "mpirun of the mpich package starts no ranks here; install an MPI of your own"
            fi
        fi
    fi
}

# One set-up at a time in a clone; the lock goes with this shell's descriptor.
exec 9<.
! command -v flock >/dev/null || flock 9
if [[ $(dirname "$(command -v python3 || true)") -ef .venv/bin ]]; then
    why_not="the active .venv is out of date"
    use_venv
elif ! path_is_enough; then
    use_venv
fi
exec 9<&-
export PATH
exec "$@"
