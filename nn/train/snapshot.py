"""Collects a checkpoint of a trainer: parameters, the optimiser's states, and the metadata to go on from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nn.checkpoints.metadata import Checkpoint, Metadata
from nn.parallel import plan_files
from nn.problem.progress import Progress
from nn.train.diverged import require_finite_parameters

if TYPE_CHECKING:
    from nn.train.trainer import Trainer


def snapshot(trainer: Trainer, progress: Progress, environment: Mapping[str, Any]) -> Checkpoint | None:
    """Collect a checkpoint on rank 0; return None on others. Collective.

    Raises Diverged, on all ranks, if parameters are not finite.
    """
    precision = _precision_at(trainer, progress)
    whole, states = trainer.parameters(), trainer.training.whole_state()
    job = trainer.runtime.job
    require_finite_parameters(all(np.isfinite(array).all() for array in whole.values()), job)
    if job.rank > 0:
        return None
    plan, found = plan_files.as_json(trainer.model.shard.plan), trainer.resumed
    description = dict(trainer.problem.description)
    metadata = Metadata(progress, precision, description, dict(environment), plan, found.data, found.initial)
    return Checkpoint(metadata, whole, states)


def _precision_at(trainer: Trainer, progress: Progress) -> float | None:
    """Return the validation accuracy of the parameters after these steps."""
    validation = trainer.setup.validation
    if validation is None:
        return None
    if progress.step % trainer.problem.schedule.batches == 0 and progress.epochs:
        return progress.epochs[-1].validation_precision
    return validation.scores().precision
