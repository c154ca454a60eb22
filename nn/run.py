"""The whole pipeline in process: device, data, network, training, evaluation, check, files, report."""

from __future__ import annotations

import dataclasses
import math
import platform
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from nn import check, data, parameters, placement
from nn.batches import Schedule, split
from nn.checkpoints.past import Past, open_past
from nn.checkpoints.state import Checkpoint, Story
from nn.console import Console
from nn.data import Dataset
from nn.evaluation import Evaluator, Samples, Scores, score
from nn.files import require_writable, write_whole
from nn.gemm_versions import common_gemm, fastest_gemm, runs_gemm
from nn.launches import Kernels
from nn.machine import Machine, Ways
from nn.mma import MMA_TERMS
from nn.model import Model
from nn.network import Network
from nn.options import Options
from nn.plan import Plan, RankPart, files
from nn.plan.choice import AUTO, choose_plan, fastest_plan
from nn.plan.paper import Task
from nn.plan.probe import Setting
from nn.progress import Epoch, Progress
from nn.report import Report, gather_phases, header
from nn.required import is_apart, required
from nn.resident import Resident
from nn.training import Diverged, Training
from pyrt.alike import require_alike, sources
from pyrt.devices import open_device
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange.choose import Choice, choose
from pyrt.job import Job, defer_stops, join
from pyrt.kernels import KernelLibrary
from pyrt.phases import Phases

_PROJECT = Path(__file__).resolve().parents[1]


def run(
    options: Options, job: Job | None = None, phases: Phases | None = None, console: Console | None = None
) -> Report:
    """Do what the options say, on all ranks of the job (default: all of MPI's); silent without a console.

    Collective. Raises UserError, on all ranks, for what cannot be done; Diverged for a loss that is not
    finite.
    """
    job = job or join()
    phases = phases or Phases(time.perf_counter())
    console = console or Console(speaking=False)
    if options.checkpoint is not None:
        defer_stops()
    _require_alike(options, job)
    with job.together():
        if job.rank == 0:
            _require_writable_files(options)
    with phases.phase("load checkpoint"):
        past = open_past(options, job, lambda line: console.say(f"warning: {line}"))
    with phases.phase("start device"):
        device = open_device(options.device, job, options.share_gpus, options.sanitize, options.order_seed)
    if device.warning:
        console.say(f"warning: {device.warning}")
    try:
        phases.use_device(device.driver)
        if options.profile:
            phases.use_profile(job.comm.Dup().Barrier)  # no order with the sums to keep
        dataset = _load(options, job, phases)
        options = _with_common_gemm(options, job, device.driver)
        with job.together():
            _require_gemm(options, device.driver)
        digest = past.begin(options, dataset)
        way = choose(past.exchange(options, device.driver), device.driver, job, options.ranks_per_node)
        part = _part(options, job, phases, device.driver, way, dataset, past.plan(device.driver))
        ways = Ways.of(way, part)
        kernels = _kernels(options, job, phases, device.driver, part, dataset.images.dtype, ways)
        batch = _task(options, part.network, dataset).batch
        machine = Machine.make(job, device.driver, phases, kernels, ways, part, options.dtype, batch)
        # NumPy's warnings of overflow would come from every rank: a loss that is not finite says it once.
        with closing(machine.links), np.errstate(all="ignore"):
            pipeline = _Pipeline(options, part, machine, dataset, console, device.why, past, digest)
            report = pipeline.evaluate() if options.evaluate else pipeline.train()
        phases.settle()
    finally:
        with phases.phase("close device"):
            device.driver.close()
    return dataclasses.replace(report, phases=gather_phases(job, phases.times()))


def _require_alike(options: Options, job: Job) -> None:
    if job.size > 1:
        versions = {"Python": platform.python_version(), "NumPy": np.__version__}
        code = sources(*(_PROJECT / folder for folder in ("pyrt", "nn", "kernels")))
        require_alike(job, {**versions, **code}, "install the same version on all nodes")
        require_alike(job, options.common, "give all ranks the same options")


def _require_writable_files(options: Options) -> None:
    for name in ("save", "json", "predictions", "save_plan"):
        path = getattr(options, name)
        if path is not None:
            require_writable(f"--{name.replace('_', '-')}", path)


def _load(options: Options, job: Job, phases: Phases) -> Dataset:
    """The data set, read by rank 0 (which alone touches files and the network) and sent to all."""
    dataset = None
    with phases.phase("load data"), job.together():
        if job.rank == 0:
            dataset = data.load(options.data)
            if options.evaluate and dataset.test_images is None:
                raise UserError(f"--evaluate: {dataset.name} has no test images: give data that has them")
    with phases.phase("distribute data"):
        return _broadcast(dataset, job)


def _broadcast(dataset: Dataset | None, job: Job) -> Dataset:
    """Rank 0's data set on every rank: the description as an object, the arrays as buffers."""
    fields = vars(dataset) if dataset is not None else {}
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    description = job.comm.bcast(
        (
            {name: value for name, value in fields.items() if name not in arrays},
            {name: (array.shape, array.dtype) for name, array in arrays.items()},
        )
    )
    received: dict[str, Any] = {}
    for name, (shape, dtype) in description[1].items():
        received[name] = arrays[name] if job.rank == 0 else np.empty(shape, dtype)
        job.comm.Bcast(received[name].reshape(-1).view(np.uint8))
    return Dataset(**description[0], **received)


def _part(
    options: Options,
    job: Job,
    phases: Phases,
    driver: Driver,
    way: Choice,
    dataset: Dataset,
    chosen: Plan | None,
) -> RankPart:
    """What the plan that was asked for, or ``chosen`` before, or the fastest, gives this rank."""
    sizes = (dataset.images.shape[1], *options.hidden, dataset.classes)
    plan = chosen
    with job.together():
        network = Network(sizes, options.activation, options.head)
        if job.rank == 0 and options.plan != AUTO:  # a file may be on this rank's node alone
            plan = choose_plan(options, network, job.size)
    if options.plan == AUTO and plan is None:
        with phases.phase("choose plan"):
            plan = fastest_plan(Setting(job, driver, way, _task(options, network, dataset)))
    with job.together():
        if job.rank == 0 and options.save_plan is not None:
            assert plan is not None
            files.save(options.save_plan, plan)
    return RankPart(job.comm.bcast(plan), network, job.rank)


def _task(options: Options, network: Network, dataset: Dataset) -> Task:
    """A step of the training, its batch no larger than what there is."""
    samples = options.samples or split(len(dataset.images), options.val_fraction)
    batch = max(1, min(options.batch, samples))
    return Task(network, batch, options.dtype, options.momentum > 0, options.gemm, options.math)


def _kernels(
    options: Options,
    job: Job,
    phases: Phases,
    driver: Driver,
    part: RankPart,
    pixel: DTypeLike,
    ways: Ways,
) -> Kernels | None:
    """The project's kernels, compiled by one rank a node; None where NumPy computes."""
    if not driver.has_kernels:
        return None
    with job.together():
        kernels = Kernels(KernelLibrary(driver), options.dtype, options.gemm, options.math)
    with phases.phase("compile kernels"), job.together():
        if job.node.rank == 0:
            rows, classes = options.batch // job.size, part.network.classes
            apart = not part.plan.is_data or is_apart(kernels, options.hidden, classes, rows, options.profile)
            network = options.activation, options.head, classes, pixel, apart
            exchanges = {(way.name, way.node.size) for way in (ways.all, ways.shard)}
            wanted = [
                required(kernels, *network, *exchange, ways.moves, ways.group.job.size)
                for exchange in exchanges
            ]
            kernels.library.compile([file for files in wanted for file in files])
    return kernels


def _with_common_gemm(options: Options, job: Job, driver: Driver) -> Options:
    """Where ranks have GPUs of different kinds: with the product that all of them run, so that all compute
    alike. Collective."""
    architectures = set(job.comm.allgather(driver.architecture))
    if options.gemm != "auto" or len(architectures) == 1:
        return options
    return dataclasses.replace(options, gemm=common_gemm(options.dtype, architectures))


def _require_gemm(options: Options, driver: Driver) -> None:
    what = f"{driver.name}, {driver.device_name}"
    if driver.has_kernels and not runs_gemm(options.gemm, driver.architecture):
        raise UserError(f"--gemm {options.gemm}: {what}, has no such tensor cores: use --gemm auto")
    version = options.gemm if options.gemm != "auto" else fastest_gemm(options.dtype, driver.architecture)
    if version == "mma" and driver.has_kernels and options.math not in MMA_TERMS:
        raise UserError(
            f"--math {options.math}: needs --gemm wgmma, and {what}, takes mma for --gemm {options.gemm}: "
            "use --math tf32, or leave it out"
        )
    if options.math != "float32" and (version not in ("mma", "wgmma") or not driver.has_kernels):
        raise UserError(
            f"--math {options.math}: goes with tensor cores, and {what}, takes none for "
            f"--gemm {options.gemm}: leave it out"
        )


def _require_finite(scores: Scores | None) -> None:
    if scores is not None and not math.isfinite(scores.loss):
        raise Diverged(
            f"the loss on the test set is {scores.loss}: nothing was written; the parameters are too large"
        )


class _Pipeline:
    """A run whose device and data are there."""

    def __init__(
        self,
        options: Options,
        part: RankPart,
        machine: Machine,
        dataset: Dataset,
        console: Console,
        why: str,
        past: Past,
        digest: str,
    ) -> None:
        """``digest`` is of the training data, where checkpoints are kept."""
        self._past, self._digest = past, digest
        self._options, self._machine, self._dataset, self._console = options, machine, dataset, console
        self._job, self._phases = machine.job, machine.phases
        self._losses: list[tuple[int, float]] = []
        self._training_rows = split(len(dataset.images), options.val_fraction)
        samples = options.samples or self._training_rows
        with self._phases.phase("train setup"), self._job.together():
            self._schedule = Schedule(
                self._training_rows, samples, options.batch, options.epochs, options.shuffle, options.seed
            )
            self._model = Model(options, part, machine, self._schedule.batch, past.parameters)
        with self._phases.phase("train setup"), self._job.together():
            self._placement = self._place()
        # Under --profile the host waits for the end of every phase.
        self._graphs = options.graph and not options.profile and machine.driver.has_kernels
        self._environment = self._describe(why)

    def _place(self) -> str:
        """Where the training set will lie, the same on every rank. Collective."""
        options, job, driver = self._options, self._job, self._machine.driver
        if not driver.has_kernels:
            if options.placement == "resident":
                raise UserError("--placement resident: there is no device but the CPU: use auto or stream")
            return "stream"
        images = self._dataset.images[: self._schedule.used]
        gradients = self._model.parameters.flat.nbytes * (2 if options.momentum else 1)
        needed = Resident.nbytes(images, self._schedule) + gradients
        kernels = self._machine.kernels
        if kernels is not None and kernels.uses_terms:  # terms take half as much again, of two sizes
            needed += 3 * self._model.activations.nbytes
        if options.share_gpus or driver.name == "emulated":
            needed *= job.node.size  # all of the node's ranks may be on one device
        chosen = placement.choose(options.placement, needed, driver.free_memory(), self._schedule.samples)
        return "resident" if job.comm.allreduce(chosen == "resident") == job.size else "stream"

    def train(self) -> Report:
        """Train, score, check, save."""
        machine, past = self._machine, self._past
        every = self._options.steps_between_checkpoints(self._schedule.batches)
        with self._phases.phase("train setup"), self._job.together():
            training = Training(
                self._options,
                self._model,
                machine,
                self._dataset,
                self._schedule,
                self._placement,
                self._graphs,
                [every] if self._options.checkpoint is not None else [],
            )
            training.set_velocity(past.velocity)
            validation = self._evaluator(self._validation_set())
            test = self._evaluator(self._test_set())
        if self._options.resume:
            self._console.say(f"resumed at step {past.progress.step}")
        keeper = past.keeper(self._options, every, self._console)
        if keeper is None:
            epochs = training.run(validation, self._console, past.progress, None).epochs
        else:
            with closing(keeper):
                keeper.use(lambda progress: self._snapshot(training, validation, progress))
                progress = training.run(validation, self._console, past.progress, keeper)
                keeper.end(progress)
            epochs = progress.epochs
        self._losses = training.printed
        if keeper is not None and keeper.is_preempted:
            step, steps = progress.step, self._schedule.steps
            self._console.say(f"preempted at step {step} of {steps}: the same command with --resume goes on")
            return dataclasses.replace(self._report(epochs, None, None), preempted=True)
        self._require_finite_parameters()
        scores = test.scores() if test is not None else None
        _require_finite(scores)
        result = self._check(scores, epochs) if self._options.check else None
        self._save(epochs, scores)
        return self._report(epochs, scores, result)

    def _snapshot(
        self, training: Training, validation: Evaluator | None, progress: Progress
    ) -> Checkpoint | None:
        """A checkpoint of now on rank 0. Collective; Diverged where parameters are not finite."""
        with self._phases.phase("checkpoint"):
            ends_epoch = progress.step % self._schedule.batches == 0
            if validation is None:
                precision = None
            elif ends_epoch and progress.epochs:
                precision = progress.epochs[-1].validation_precision
            else:
                precision = validation.scores().precision
            self._require_finite_parameters()
            parameters, velocity = self._model.whole_parameters(), training.whole_velocity()
            if self._job.rank > 0:
                return None
            plan = files.as_json(self._model.part.plan)
            story = Story(progress, precision, self._options.as_json(), self._environment, plan, self._digest)
            return Checkpoint(story, parameters, velocity)

    def _require_finite_parameters(self) -> None:
        """The loss of a step is that of the parameters before it: the last step's are looked at."""
        finite = bool(np.isfinite(self._model.parameters.flat.to_host()).all())
        if not all(self._job.comm.allgather(finite)):  # each shard knows of its own alone
            raise Diverged(
                "the last step left parameters that are not finite: nothing was written; try a smaller --lr"
            )

    def evaluate(self) -> Report:
        """Train nothing: score the test set, write the predictions."""
        with self._phases.phase("train setup"), self._job.together():
            test = self._evaluator(self._test_set())
        assert test is not None  # _load has seen to it
        logits = test.logits()
        scores = score(logits, test.labels, self._options.head) if logits is not None else None
        scores = self._job.comm.bcast(scores)
        _require_finite(scores)
        path = self._options.predictions
        with self._phases.phase("save"), self._job.together():
            if logits is not None and path is not None:
                lines = "".join(f"{label}\n" for label in logits.argmax(axis=1))
                write_whole("--predictions", path, lambda file: file.write(lines.encode()))
        return self._report([], scores, None)

    def _validation_set(self) -> Samples | None:
        first, data = self._training_rows, self._dataset
        return (data.images[first:], data.labels[first:]) if first < len(data.images) else None

    def _test_set(self) -> Samples | None:
        images, labels = self._dataset.test_images, self._dataset.test_labels
        return (images, labels) if images is not None and labels is not None else None

    def _evaluator(self, samples: Samples | None) -> Evaluator | None:
        if samples is None:
            return None
        return Evaluator(self._model, samples, self._options.pixel_scale, self._machine)

    def _check(self, test: Scores | None, epochs: list[Epoch]) -> check.Check:
        """The check on rank 0, while the others sleep; its result on all."""
        result = None
        with self._phases.phase("check"):
            trained = self._model.whole_parameters()
            if self._job.rank == 0:
                held_out = self._test_set() or self._validation_set()
                precision = test.precision if test else epochs[-1].validation_precision if epochs else None
                result = check.compare(
                    trained,
                    self._model.initial,
                    self._options,
                    self._dataset,
                    self._schedule,
                    held_out,
                    precision,
                )
            self._job.wait_for_all()
            return self._job.comm.bcast(result)

    def _save(self, epochs: list[Epoch], scores: Scores | None) -> None:
        if self._options.save is None:
            return
        with self._phases.phase("save"), self._job.together():
            trained = self._model.whole_parameters()
            if self._job.rank == 0:
                story = {
                    "options": self._options.as_json(),
                    "environment": self._environment,
                    "epochs": len(epochs),
                    "test_precision": scores.precision if scores is not None else None,
                }
                parameters.save(self._options.save, trained, story)

    def _report(self, epochs: list[Epoch], scores: Scores | None, result: check.Check | None) -> Report:
        return Report(self._options.as_json(), self._environment, epochs, self._losses, scores, result)

    def _describe(self, why: str) -> dict[str, Any]:
        """What the run stands on; also said to the console. Collective."""
        job, options, network = self._job, self._options, self._model.network
        driver = self._machine.driver
        devices = job.comm.gather(driver.device_name)
        nodes = job.comm.allreduce(job.node.rank == 0)
        environment = {
            "ranks": job.size,
            "nodes": int(nodes),
            "device": driver.name,
            "devices": job.comm.bcast(devices),
            "device_why": why,
            "mpi": job.library,
            "blas_threads": job.threads,
            "plan": str(self._model.part.plan),
            "exchange": self._machine.ways.all.name,
            "exchange_why": self._machine.ways.all.why,
            "placement": self._placement,
            "graphs": self._graphs,
            "gemm": self._machine.kernels.gemm_version if self._machine.kernels else "numpy",
            "network": str(network),
            "parameters": network.parameter_count,
            "data": self._dataset.name,
            "python": platform.python_version(),
            "numpy": np.__version__,
        }
        lines = header(environment, options, self._dataset, self._training_rows, self._schedule)
        for line in lines:
            self._console.say(line)
        return {**environment, "header": lines}
