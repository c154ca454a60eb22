#!/bin/bash
# A training that outlasts its time limit: sbatch docs/slurm.sh [options of train.py]
#
# Two minutes before the limit Slurm sends USR1 to the ranks that srun has started (not to this shell: that would be
# B:USR1@120). They leave a checkpoint and end with 0, state.json says preempted, and the job puts itself back into the
# queue. It starts again under the same number, so with the same folder, where --resume finds the checkpoint.
#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

cd "$SLURM_SUBMIT_DIR"
source .venv/bin/activate
checkpoints=${CHECKPOINTS:-checkpoints-$SLURM_JOB_ID}

# The word of the time before: a run that cannot write its own would come back for ever.
rm -f "$checkpoints/state.json"

# --mpi=pmi2 for MPICH.
srun --mpi=pmix python train.py --hidden 512 --batch 12000 "$@" --checkpoint "$checkpoints" --resume

# Only after exit code 0, else the script has ended.
if grep -qs '"state": "preempted"' "$checkpoints/state.json"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
