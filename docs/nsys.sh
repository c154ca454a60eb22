#!/bin/bash
# A profile of a training under Slurm: sbatch docs/nsys.sh [options of train.py]
#
# mpirun does not run under nsys, and nsys not under mpirun, on every cluster's command line. Here srun starts nsys once
# for each rank, and nsys starts Python: a report for each rank, with its GPU, its NVTX ranges and its calls of MPI.
# MPI_IMPL=mpich where the MPI is MPICH (or Cray's, Intel's); SRUN_MPI=pmi2 then.
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8
#SBATCH --time=00:20:00
set -euo pipefail

cd "$SLURM_SUBMIT_DIR"
source .venv/bin/activate
if ! command -v nsys >/dev/null; then
    echo "nsys.sh: error: nsys is not on PATH: load the module of CUDA or of Nsight Systems" >&2
    exit 2
fi
reports=${REPORTS:-profile-$SLURM_JOB_ID}
mkdir -p "$reports"

# A first run without nsys compiles the kernels: they do not belong into a profile.
run=("$(command -v python)" train.py --hidden 512 --batch 3000 --epochs 5 "$@")
srun --mpi="${SRUN_MPI:-pmix}" "${run[@]}" --quiet

# --profile: each range shows its own time. Leave it out, with --no-graph in its place, to see what overlaps.
srun --mpi="${SRUN_MPI:-pmix}" nsys profile --trace=cuda,nvtx,mpi --mpi-impl="${MPI_IMPL:-openmpi}" --sample=none \
    --force-overwrite=true --output="$reports/rank-%q{SLURM_PROCID}" "${run[@]}" --profile

# The tables of the course's report: ranges (count, total, mean, median, deviation), kernels, copies, calls of MPI.
for report in "$reports"/rank-*.nsys-rep; do
    nsys stats --report nvtx_sum,cuda_gpu_kern_sum,cuda_gpu_mem_time_sum,mpi_event_sum --format csv \
        --force-export=true --output "${report%.nsys-rep}" "$report"
done
