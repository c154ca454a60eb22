"""Rule: the whole step of a small network with one hidden layer, from images to gradients, is one kernel.

Launches that wait for each other take most of such a step. What is between two of its operations, or reads
what they leave for each other, keeps them apart: dropout, augmented images, gradients in several panels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nn.launch.classifier import FusedClassifier
from nn.launch.elementwise import BiasActivation
from nn.launch.fused_step import FusedStep
from nn.launch.gemm.product import Product
from nn.launch.kernels import Kernels
from nn.launch.pixels import GatherBatch
from nn.launch.work import Fused
from nn.program.fuse_classifier import LENGTH as END_LENGTH
from nn.program.fuse_classifier import match_classifier
from nn.program.operations import FORWARD, BucketReady, Item, Operation
from nn.program.rewrite import Replacement, reads, same

_END = 3
"""Where the end of the network begins: behind the gather, the product, bias and activation."""

LENGTH = _END + END_LENGTH + 1
"""Items of the pattern."""


def match_step(items: Sequence[Item]) -> FusedStep | None:
    """Find the step of a network with one hidden layer, if these are its first items, and all but buckets."""
    first, end = [_work(item) for item in items[:_END]], match_classifier(items[_END:])
    last = _work(items[LENGTH - 1]) if len(items) >= LENGTH else None
    match [*first, end, last]:
        case [
            GatherBatch() as gather,
            Product() as hidden,
            BiasActivation() as above,
            FusedClassifier() as end,
            Product() as dW,
        ] if (
            type(gather) is GatherBatch
            and same(gather.X, hidden.A)
            and hidden.transpose_b
            and not hidden.transpose_a
            and all(same(array, end.A) for array in (hidden.D, above.Z))
            and above.activation == end.activation
            and same(gather.batch_labels, end.labels)
            and dW.transpose_a
            and not dW.transpose_b
            and (same(dW.A, end.dZ) and same(dW.B, gather.X))
        ):
            left = gather.X, end.A, end.dZ, end.labels
            if not any(reads(item, array) for item in items[LENGTH:] for array in left):
                return _step_of(gather, hidden, above, end, dW)
    return None


def _work(item: Item) -> object:
    return item.work if isinstance(item, Operation) else None


def _step_of(
    gather: GatherBatch, hidden: Product, above: BiasActivation, end: FusedClassifier, dW: Product
) -> FusedStep:
    return FusedStep(
        end.loss,
        end.activation,
        gather.X.shape[0],
        gather.images,
        gather.labels,
        gather.order,
        gather.cursor,
        gather.scale,
        gather.starts_early,
        hidden.B,
        above.b,
        end.W,
        end.b,
        dW.D,
        end.db_hidden,
        end.dW,
        end.db,
        end.loss_sum,
        end.scale,
    )


@dataclass(frozen=True)
class FuseStep:
    """The rule for some kernels."""

    kernels: Kernels

    def __call__(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        step = match_step(rest) if not done else None
        if step is None or not self.kernels.fuses_step(step.sizes):
            return None
        parts = [item for item in rest[:LENGTH] if isinstance(item, Operation)]
        buckets = [item for item in rest[:LENGTH] if isinstance(item, BucketReady)]
        return Replacement(LENGTH, [_operation(step, parts), *buckets])


def _operation(step: FusedStep, parts: Sequence[Operation]) -> Operation:
    reads = *parts[0].reads, *step.parameters
    writes = *step.results, step.cursor.state
    work = Fused([part.work for part in parts], reads, writes, partial(FusedStep.on_device, step))
    name = f"{parts[0].name} to {parts[-1].name}"
    return Operation(name, FORWARD, work, starts_early=step.starts_early, layer=parts[1].layer)
