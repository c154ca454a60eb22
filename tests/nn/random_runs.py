"""Random whole runs: plans of every mix, grids, exchanges, devices, uneven widths, batches below the ranks.

Each is compared with the NumPy reference in float64: parameters, the optimiser's states in its checkpoint,
the loss of each epoch. Then it is broken off after some step and resumed: it ends with the same bits.

One by its number, on any number of ranks: mpirun -n 3 python -m tests.nn.random_runs 17 [--device emulated]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from nn.app.load import load, problem_of
from nn.app.options import Options
from nn.app.report import Report
from nn.checkpoints import files
from nn.checkpoints.stopping import Stopping
from nn.input.validation_split import SPLITS as VAL_SPLITS
from nn.input.validation_split import TAIL
from nn.model import reference
from nn.model.network import ACTIVATIONS, LOSSES, Network
from nn.optimisers import OPTIMISERS
from nn.parallel.plan import SAMPLES, SPACE, SPLITS, Plan
from nn.train import check
from pyrt.errors import UserError
from pyrt.job import Job
from pyrt.job import run as run_job
from train import train

PIXELS, CLASSES = (5, 3), 5
ROWS = 23
"""Training samples, of which some validate."""

ON_THE_CPU = ("root", "blocking", "host", "device")
WITH_KERNELS = (*ON_THE_CPU, "peer", "hierarchical")

TOLERANCE = {"float64": 1e-11, "float32": 1e-4}
"""Relative max norm, for a few steps at rates up to 1."""

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class RandomRun:
    """A run drawn from a number, for so many ranks."""

    number: int
    ranks: int
    device: str
    options: Options
    plan: dict[str, Any]
    stop: int
    """The step after which it is broken off."""

    @classmethod
    def drawn(cls, number: int, ranks: int, device: str) -> RandomRun:
        """Draw the run of this number, the same each time."""
        rng = np.random.default_rng([number, ranks])
        shards = int(rng.choice([size for size in (1, 2, 2, 3, 3, 4, 4) if ranks % size == 0]))
        hidden = tuple(int(units) for units in rng.integers(shards, 12, rng.integers(0, 4)))
        splits = [str(rng.choice(SPLITS)) if shards > 1 else SAMPLES for _ in (*hidden, CLASSES)]
        val_fraction = float(rng.choice([0.0, 0.2]))
        exchange = str(rng.choice(ON_THE_CPU if device == "cpu" else WITH_KERNELS))
        options = Options(
            hidden=hidden,
            activation=str(rng.choice(ACTIVATIONS)) if hidden else Options.activation,
            head=str(rng.choice(list(LOSSES))),
            reg=float(rng.choice([0.0, 0.01])),
            batch=int(rng.integers(1, 14)),
            samples=int(rng.integers(1, 30)),
            epochs=2,
            lr=float(rng.choice([0.1, 0.5])),
            momentum=float(rng.choice([0.0, 0.9])),
            dtype=str(rng.choice(["float64", "float64", "float32"])),
            shuffle=bool(rng.integers(2)),
            seed=int(rng.integers(100)),
            val_fraction=val_fraction,
            val_split=str(rng.choice(VAL_SPLITS)) if val_fraction else TAIL,
            device=device,
            exchange=exchange,
            ranks_per_node=int(rng.integers(2, 4)) if exchange == "hierarchical" else None,
            placement=str(rng.choice(["auto", "stream"])),
            graph=bool(rng.integers(2)),
            order_seed=int(rng.integers(9)) if device == "emulated" else None,
            share_gpus=True,
        )
        steps = 2 * -(-(options.samples or 0) // options.batch)
        plan = {"grid": [ranks // shards, shards], "layers": splits}
        stop = int(rng.integers(1, steps + 1))
        options = dataclasses.replace(options, optimiser=str(rng.choice(list(OPTIMISERS))))
        if options.optimiser == "adam":  # whose steps are as long as its rate, however small gradients are
            small = 1e-8 if options.dtype == "float64" else 1e-3  # not the rounding of one that is 0
            options = dataclasses.replace(options, lr=0.05 * options.lr, eps=small, beta2=0.9)
        if rng.random() < 0.4:
            net, convolutions = drawn_net(rng, hidden, options.activation)
            if shards > 1:
                first = [str(rng.choice(SPLITS[:2]))]  # by no columns: images have one channel
                splits = [*first, *(str(rng.choice(SPLITS)) for _ in range(convolutions - 1)), *splits]
            else:
                splits = [SAMPLES] * convolutions + splits
            plan["layers"] = splits
            plain = {"hidden": Options.hidden, "activation": Options.activation}
            # Deep nets of large weights magnify roundings of float32.
            options = dataclasses.replace(options, net=net, dtype="float64", **plain)
            if shards > 1:
                plan["layers"] = by_space(rng, plan, options.make_network(PIXELS, CLASSES))
        augment = rng.choice(["", "", "", "flip", "shift1", "flip,shift1"])
        options = dataclasses.replace(options, augment=str(augment) or None)
        return cls(number, ranks, device, options, plan, stop)

    def __str__(self) -> str:
        """The command that makes it again, and what it is."""
        given = {
            field.name: getattr(self.options, field.name)
            for field in dataclasses.fields(self.options)
            if getattr(self.options, field.name) != field.default
        }
        command = (
            f"mpirun -n {self.ranks} python -m tests.nn.random_runs {self.number} --device {self.device}"
        )
        return f"{command}\n{json.dumps(self.plan)}, stopped after step {self.stop}, {given}"

    def check(self, folder: Path, job: Job) -> None:
        """Raise AssertionError on rank 0 where it goes wrong. Collective; the folder is of all ranks."""
        options = self._in(folder, job)
        whole = self._run(options, job, folder / "whole")
        self._run(options, job, folder / "broken", stop=self.stop)
        resumed = self._run(options, job, folder / "broken", resume=True)
        if job.rank > 0:
            return
        kept, again = (files.load(newest(folder / name)) for name in ("whole", "broken"))
        self._check_against_the_reference(options, kept, whole)
        assert bits(again.parameters) == bits(kept.parameters), "resumed: other parameters"
        states = ({name: bits(arrays) for name, arrays in one.states.items()} for one in (again, kept))
        assert next(states) == next(states), "resumed: other states of the optimiser"
        losses, others = ([epoch.loss for epoch in report.epochs] for report in (whole, resumed))
        assert losses == others, "resumed: other losses"

    def _in(self, folder: Path, job: Job) -> Options:
        """The options, with files that rank 0 writes here."""
        data, plan, init = folder / "data.npz", folder / "plan.json", folder / "init.npz"
        if job.rank == 0:
            rng = np.random.default_rng(self.number)
            images = rng.integers(0, 256, (ROWS, *PIXELS)).astype(np.uint8)
            labels = rng.permutation(np.arange(ROWS) % CLASSES)
            np.savez(data, x_train=images, y_train=labels, x_test=images[:3], y_test=labels[:3])
            plan.write_text(json.dumps(self.plan))
            np.savez(init, **self._initial(rng))
        job.comm.barrier()
        return dataclasses.replace(self.options, data=str(data), plan=str(plan), init=init)

    def _initial(self, rng: np.random.Generator) -> Arrays:
        """Parameters of which no two are equal, biases among them: those of two ranks cannot be confused."""
        network = self.options.make_network(PIXELS, CLASSES)
        return {name: rng.standard_normal(shape) for name, shape in network.shapes.items()}

    def _run(
        self, options: Options, job: Job, checkpoints: Path, stop: int | None = None, resume: bool = False
    ) -> Report:
        """Run it; asked to stop after a step."""
        is_agreed = Stopping.is_agreed
        if stop is not None:
            Stopping.is_agreed = lambda stopping, step, done: step >= stop  # type: ignore[method-assign]
        try:
            # Graphs of whole runs and of those that stop hold the same steps.
            every = str(self.stop)
            changed = dataclasses.replace(
                options, checkpoint=checkpoints, checkpoint_every=every, resume=resume
            )
            report = train(changed, job)
        finally:
            Stopping.is_agreed = is_agreed  # type: ignore[method-assign]
        job.comm.barrier()
        return report

    def _check_against_the_reference(self, options: Options, kept: files.Checkpoint, report: Report) -> None:
        parameters, states, losses = trained(options)
        tolerance = TOLERANCE[options.dtype]
        pairs = [(name, kept.parameters[name], parameters[name]) for name in parameters]
        assert list(kept.states) == list(options.make_optimiser().states)
        for state, arrays in kept.states.items():
            pairs += [(f"{state}_{name}", array, states[state][name]) for name, array in arrays.items()]
        off = {name: check.difference(name, array, truth).max_norm for name, array, truth in pairs}
        assert all(difference <= tolerance for difference in off.values()), off
        np.testing.assert_allclose(
            [epoch.loss for epoch in report.epochs], losses, rtol=tolerance, err_msg="losses of epochs"
        )


def by_space(rng: np.random.Generator, plan: dict[str, Any], network: Network) -> list[str]:
    """Split some convolutions by rows of images, where these are high enough."""
    splits, (groups, shards) = list(plan["layers"]), plan["grid"]
    for place in range(len(splits)):
        others = (*splits[:place], SPACE, *splits[place + 1 :])
        with contextlib.suppress(UserError):
            Plan(groups, shards, others).require_fits(network, groups * shards)
            splits[place] = str(rng.choice([splits[place], SPACE]))
    return splits


def drawn_net(rng: np.random.Generator, hidden: tuple[int, ...], activation: str) -> tuple[str, int]:
    """Draw convolutions and pools before dense layers: the text, and how many convolutions.

    Each has filters for all ranks, whatever is left of an image.
    """
    words: list[str] = []
    convolutions, (height, width) = int(rng.integers(1, 3)), PIXELS
    for place in range(convolutions + 1):
        if place > 0:
            rows, columns, filters = rng.integers((1, 1, 4), (4, 4, 18))
            stride = int(rng.integers(1, 3))
            words.append(f"conv{rows}x{columns}x{filters}s{stride}same")
            words += [str(rng.choice(ACTIVATIONS))] if rng.random() < 0.8 else []
            height, width = -(-height // stride), -(-width // stride)
        pools = ["pool1", "gap", *(["pool2s1", "avgpool2s1"] if min(height, width) > 1 else [])]
        if rng.random() < (0.7 if place > 0 else 0.2):
            words.append(str(rng.choice(pools)))
            height, width = {"gap": (1, 1), "pool1": (height, width)}.get(words[-1], (height - 1, width - 1))
    for units in hidden:
        words += [f"dense{units}", activation]
    return ",".join([*words, f"dense{CLASSES}"]), convolutions


def trained(options: Options) -> tuple[Arrays, dict[str, Arrays], list[float]]:
    """Train the reference in float64: its parameters, averages m and v, and mean loss of each epoch.

    With momentum v is the velocity.
    """
    problem = problem_of(options, load(options)[0])
    network, schedule = problem.network, problem.schedule
    assert options.init is not None
    with np.load(options.init) as file:
        parameters = {name: file[name].astype(options.dtype).astype(np.float64) for name in file.files}
    m, v = ({name: np.zeros_like(array) for name, array in parameters.items()} for _ in range(2))
    losses = [0.0] * options.epochs
    for step, (X, labels) in enumerate(check.batches(problem)):
        _, Z = reference.forward(parameters, X, network)
        losses[schedule.epoch(step)] += reference.losses(Z, labels, options.head).sum() / schedule.samples
        _, gradients = reference.cost_and_gradients(parameters, X, labels, network, options.reg)
        for name, gradient in gradients.items():
            if options.optimiser == "sgd":
                v[name] = options.momentum * v[name] + gradient
                parameters[name] = parameters[name] - options.lr * v[name]
                continue
            m[name] += (1 - options.beta1) * (gradient - m[name])
            v[name] += (1 - options.beta2) * (gradient**2 - v[name])
            mean = m[name] / (1 - options.beta1 ** (step + 1))
            square = v[name] / (1 - options.beta2 ** (step + 1))
            parameters[name] = parameters[name] - options.lr * mean / (np.sqrt(square) + options.eps)
    return parameters, {"m": m, "v": v}, losses


def newest(folder: Path) -> Path:
    return max(folder.glob("step-*.npz"))


def bits(arrays: Arrays) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def main(job: Job) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int)
    parser.add_argument("--device", default="cpu", choices=("cpu", "emulated", "cuda"))
    arguments = parser.parse_args()
    case = RandomRun.drawn(arguments.number, job.size, arguments.device)
    if job.rank == 0:
        print(case, flush=True)
    with tempfile.TemporaryDirectory() as made:
        case.check(Path(job.comm.bcast(made)), job)
        job.comm.barrier()
    if job.rank == 0:
        print("right")
    return 0


if __name__ == "__main__":
    run_job(main)
