"""Slurm on a cluster of `tests.cluster`: a controller on the login node, a daemon on each node.

It has two partitions of the same nodes: a job in `URGENT` preempts those in `PATIENT`, which go back into the
queue. Nodes claim more cores and GPUs than there are, so that docs/slurm.sh runs as it is.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.cluster import Cluster

PATIENT, URGENT = "patient", "urgent"

GRACE = 20
"""Seconds that a job has to end once it is preempted."""

_GPUS = 4

# A job that is requeued begins again when its old credentials have expired: cred_expire.
_CONFIGURATION = """
ClusterName=pyrt
SlurmctldHost=login
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir=/dev/shm/slurmd
TmpFS=/dev/shm
SlurmctldPidFile=/dev/shm/slurmctld.pid
SlurmdPidFile=/dev/shm/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
BatchStartTimeout=60
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node[0-{last}] CPUs=64 RealMemory=1000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName={patient} Nodes=ALL Default=YES PriorityTier=1 GraceTime={grace} State=UP
PartitionName={urgent} Nodes=ALL PriorityTier=2 State=UP
"""


def obstacle() -> str:
    """Why Slurm cannot run here; empty where it can."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "srun") if shutil.which(name) is None]
    return f"needs Slurm's {', '.join(missing)} (Debian: slurm-wlm)" if missing else ""


class Slurm:
    """Slurm's daemons, which end with the cluster."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        """Start them; what they write is in the folder."""
        self._cluster, self._folder = cluster, folder
        text = _CONFIGURATION.format(
            folder=folder, last=cluster.nodes - 1, gpus=_GPUS, patient=PATIENT, urgent=URGENT, grace=GRACE
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{_GPUS - 1}]\n")
        for gpu in range(_GPUS):
            (folder / f"gpu{gpu}").touch()
        (folder / "state").mkdir()
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self("slurmctld")
        for node in range(cluster.nodes):
            cluster.on(node, f"SLURM_CONF={folder}/slurm.conf slurmd -N node{node}")

    def __call__(self, *command: str) -> str:
        """Return what a command of Slurm prints on the login node."""
        return self._cluster.on_login(*command, env=self.environment)
