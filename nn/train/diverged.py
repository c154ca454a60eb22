"""Ends a training whose numbers are not finite: on all ranks, and before a result is written."""

from __future__ import annotations

import math

from nn.input.schedule import Schedule
from nn.problem.progress import Epoch
from nn.train.evaluation import Scores
from pyrt.job import AgreedError, Job


class Diverged(AgreedError):
    """A loss or a parameter is not finite. All ranks see it at the same step."""

    code = 1


def require_finite_loss(loss: float, step: int, schedule: Schedule) -> None:
    """Raise Diverged if the loss of a step, counted from 0, is not finite."""
    if not math.isfinite(loss):
        epoch, batch = schedule.epoch(step) + 1, step % schedule.batches + 1
        raise Diverged(
            f"the loss is {loss} at epoch {epoch}, step {batch}: no result was written; try a smaller --lr"
        )


def require_finite_epoch(epoch: Epoch) -> None:
    """Raise Diverged if the loss of an epoch is not finite."""
    if not math.isfinite(epoch.loss):
        raise Diverged(
            f"the loss of epoch {epoch.epoch} is {epoch.loss}: no result was written; try a smaller --lr"
        )


def require_finite_scores(scores: Scores | None) -> None:
    """Raise Diverged if the loss on the test set is not finite."""
    if scores is not None and not math.isfinite(scores.loss):
        raise Diverged(
            f"the loss on the test set is {scores.loss}: no result was written; the parameters are too large"
        )


def require_finite_parameters(finite: bool, job: Job) -> None:
    """Raise Diverged if any rank says that its parameters are not finite. Collective."""
    if not all(job.comm.allgather(finite)):
        raise Diverged(
            "the last step left parameters that are not finite: no result was written; try a smaller --lr"
        )
