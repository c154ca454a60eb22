"""The whole pipeline in process: device, data, network, training, evaluation, check, files, report."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from nn import check, data, parameters
from nn.ahead import Early
from nn.batches import Schedule, split
from nn.checkpoints.past import Past, open_past
from nn.checkpoints.state import Checkpoint, Story
from nn.console import Console
from nn.data import Dataset
from nn.evaluation import Evaluator, Scores, score
from nn.files import require_writable, write_whole
from nn.gemm_versions import common_gemm, fastest_gemm, runs_gemm
from nn.launches import Kernels
from nn.machine import Machine, Ways
from nn.memory import Needs, Pool, fit, largest
from nn.mma import MMA_TERMS
from nn.model import initial_parameters
from nn.network import Network
from nn.options import Options
from nn.plan import Plan, RankPart, files
from nn.plan.choice import AUTO, choose_plan, fastest_plan
from nn.plan.paper import Task
from nn.progress import Epoch, Progress
from nn.report import Report, gather_phases, header
from nn.required import is_apart, required
from nn.setup import Setup, set_up, test_set, validation_set
from nn.training import Diverged, Training
from nn.versions import code
from pyrt.alike import require_alike, sources
from pyrt.devices import Device, open_device
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
    with closing(_past(options, job, phases, console)) as past:
        return _run_from(past, options, job, phases, console)


def _past(options: Options, job: Job, phases: Phases, console: Console) -> Past:
    """What the run goes on from. Collective."""
    if options.checkpoint is None:
        return Past(job)
    with phases.phase("load checkpoint"):
        return open_past(options.checkpoint, options, job, lambda line: console.say(f"warning: {line}"))


def _run_from(past: Past, options: Options, job: Job, phases: Phases, console: Console) -> Report:
    """All but what is asked of the options alone. Collective."""
    # Read beside the start of the device, which takes longer.
    reading = Early(partial(data.load, options.data)) if job.rank == 0 else None
    with phases.phase("start device"):
        device = open_device(options.device, job, options.share_gpus, options.sanitize, options.order_seed)
    if device.warning:
        console.say(f"warning: {device.warning}")
    try:
        phases.use_device(device.driver)
        if options.profile:
            phases.use_profile(job.comm.Dup().Barrier)  # no order with the sums to keep
        dataset = _load(options, reading, job, phases)
        options = _with_common_gemm(options, job, device.driver)
        with job.together():
            _require_gemm(options, device.driver)
            network, schedule = _network(options, dataset), _schedule(options, dataset)
        past = past.of(options, dataset, network, schedule)
        way = choose(past.exchange(options, device.driver), device.driver, job, options.ranks_per_node)
        task = Task(network, schedule.batch, options.dtype, options.momentum > 0, options.gemm, options.math)
        part = _part(options, job, phases, device.driver, way, task, past.plan(network, device.driver))
        ways = Ways.of(way, part)
        with phases.phase("count memory"):
            memory = fit(options, part, ways, job, device.driver, dataset, schedule)
            needs = largest(memory.needs, job)
        environment = _environment(options, job, device, part, ways, dataset, schedule, memory.placement)
        if options.memory:
            _show(environment, needs, memory.pools, console)
        with job.together():
            memory.require_room(options.placement)
        report = Report(options.as_json(), environment, memory=needs)
        if not options.memory:
            kernels = _kernels(options, job, phases, device.driver, part, dataset.images.dtype, ways)
            batch = schedule.batch
            machine = Machine.make(job, device.driver, phases, kernels, ways, part, options.dtype, batch)
            # NumPy's warnings of overflow would come from every rank: a loss that is not finite says it once.
            with closing(machine.links), np.errstate(all="ignore"):
                report = _run(options, part, machine, dataset, schedule, past, report, console)
        phases.settle()
    finally:
        with phases.phase("close device"):
            device.driver.close()
    return replace(report, phases=gather_phases(job, phases.times()))


def _require_alike(options: Options, job: Job) -> None:
    if job.size > 1:
        versions = {"Python": platform.python_version(), "NumPy": np.__version__}
        files_of_ours = sources(*(_PROJECT / folder for folder in ("pyrt", "nn", "kernels")))
        require_alike(job, {**versions, **files_of_ours}, "install the same version on all nodes")
        require_alike(job, options.common, "give all ranks the same options")


def _require_writable_files(options: Options) -> None:
    for name in ("save", "json", "predictions", "save_plan"):
        path = getattr(options, name)
        if path is not None:
            require_writable(f"--{name.replace('_', '-')}", path)


def _load(options: Options, reading: Early[Dataset] | None, job: Job, phases: Phases) -> Dataset:
    """The data set, read by rank 0 (which alone touches files and the network) and sent to all."""
    dataset = None
    with phases.phase("load data"), job.together():
        if reading is not None:
            dataset = reading.take()
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


def _network(options: Options, dataset: Dataset) -> Network:
    sizes = (dataset.images.shape[1], *options.hidden, dataset.classes)
    return Network(sizes, options.activation, options.head)


def _part(
    options: Options,
    job: Job,
    phases: Phases,
    driver: Driver,
    way: Choice,
    task: Task,
    chosen: Plan | None,
) -> RankPart:
    """What the plan that was asked for, or ``chosen`` before, or the fastest, gives this rank."""
    plan = chosen
    with job.together():
        if job.rank == 0 and options.plan != AUTO:  # a file may be on this rank's node alone
            plan = choose_plan(options, task.network, job.size)
    if options.plan == AUTO and plan is None:
        with phases.phase("choose plan"):
            plan = fastest_plan(job, driver, way, task)
    with job.together():
        if job.rank == 0 and options.save_plan is not None:
            assert plan is not None
            files.save(options.save_plan, plan)
    return RankPart(job.comm.bcast(plan), task.network, job.rank)


def _schedule(options: Options, dataset: Dataset) -> Schedule:
    rows = split(len(dataset.images), options.val_fraction)
    samples = options.samples or rows
    return Schedule(rows, samples, options.batch, options.epochs, options.shuffle, options.seed)


def _environment(
    options: Options,
    job: Job,
    device: Device,
    part: RankPart,
    ways: Ways,
    dataset: Dataset,
    schedule: Schedule,
    placement: str,
) -> dict[str, Any]:
    """What the run stands on, and the lines that say so. Collective."""
    driver, network = device.driver, part.network
    devices = job.comm.gather(driver.device_name)
    nodes = job.comm.allreduce(job.node.rank == 0)
    environment = {
        "ranks": job.size,
        "nodes": int(nodes),
        "device": driver.name,
        "devices": job.comm.bcast(devices),
        "device_why": device.why,
        "mpi": job.library,
        "blas_threads": job.threads,
        "plan": str(part.plan),
        "exchange": ways.all.name,
        "exchange_why": ways.all.why,
        "placement": placement,
        "graphs": _replays_graphs(options, driver),
        "gemm": _gemm_version(options, driver) if driver.has_kernels else "numpy",
        "network": str(network),
        "parameters": network.parameter_count,
        "data": dataset.name,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    rows = split(len(dataset.images), options.val_fraction)
    return {**environment, "header": header(environment, options, dataset, rows, schedule)}


def _replays_graphs(options: Options, driver: Driver) -> bool:
    """Under --profile the host waits for the end of every phase."""
    return options.graph and not options.profile and driver.has_kernels


def _show(environment: dict[str, Any], needs: Needs, pools: Sequence[Pool], console: Console) -> None:
    """What --memory is for."""
    for line in environment["header"]:
        console.say(line)
    console.say(f"\nmemory of rank {needs.rank}, of those that need most\n\n{needs.table()}\n")
    for pool in pools:
        console.say(pool.said())


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
    return replace(options, gemm=common_gemm(options.dtype, architectures))


def _require_gemm(options: Options, driver: Driver) -> None:
    what = f"{driver.name}, {driver.device_name}"
    if driver.has_kernels and not runs_gemm(options.gemm, driver.architecture):
        raise UserError(f"--gemm {options.gemm}: {what}, has no such tensor cores: use --gemm auto")
    version = _gemm_version(options, driver)
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


def _gemm_version(options: Options, driver: Driver) -> str:
    return options.gemm if options.gemm != "auto" else fastest_gemm(options.dtype, driver.architecture)


def _require_finite(scores: Scores | None) -> None:
    if scores is not None and not math.isfinite(scores.loss):
        raise Diverged(
            f"the loss on the test set is {scores.loss}: nothing was written; the parameters are too large"
        )


def _run(
    options: Options,
    part: RankPart,
    machine: Machine,
    dataset: Dataset,
    schedule: Schedule,
    past: Past,
    report: Report,
    console: Console,
) -> Report:
    """Train or evaluate; the report with what came out. Collective."""
    job, phases = machine.job, machine.phases
    graphs = _replays_graphs(options, machine.driver)
    where = report.environment["placement"]
    with phases.phase("train setup"):
        setup = set_up(options, part, machine, dataset, schedule, where, graphs)
    with closing(setup):
        with phases.phase("train setup"):
            initial = initial_parameters(options, part.network, job)
            past = past.begun_at(initial, options)
            with job.together():
                setup.model.start(past.parameters or initial)
                if setup.training is not None:
                    setup.training.set_velocity(past.velocity)
        for line in report.environment["header"]:
            console.say(line)
        pipeline = _Pipeline(options, setup, initial, machine, dataset, schedule, past, report, console)
        return pipeline.evaluate() if options.evaluate else pipeline.train()


class _Pipeline:
    """A run whose device, data and arrays are there."""

    def __init__(
        self,
        options: Options,
        setup: Setup,
        initial: dict[str, np.ndarray],
        machine: Machine,
        dataset: Dataset,
        schedule: Schedule,
        past: Past,
        report: Report,
        console: Console,
    ) -> None:
        """The parameters have their ``initial`` values, or those of the past; the report says what the run
        stands on."""
        self._past = past
        self._options, self._setup, self._model, self._initial = options, setup, setup.model, initial
        self._dataset, self._schedule, self._report, self._console = dataset, schedule, report, console
        self._job, self._phases = machine.job, machine.phases

    def train(self) -> Report:
        """Train, score, check, save; or stop before the end, where the job is asked to."""
        training, validation, past = self._setup.training, self._setup.validation, self._past
        assert training is not None
        self._report = replace(self._report, losses=training.printed)
        if self._options.resume:
            self._console.say(f"resumed at step {past.progress.step}")
        every = self._options.steps_between_checkpoints(self._schedule.batches)
        keeper = past.keeper(self._options, every, self._console, self._phases)
        if keeper is None:
            return self._conclude(training.run(validation, self._console, past.progress, None))
        if self._job.rank == 0:
            code()  # asks git, once: not while steps wait for a snapshot
        with closing(keeper):
            keeper.begin(lambda progress: self._snapshot(training, validation, progress))
            progress = training.run(validation, self._console, past.progress, keeper)
            keeper.end(progress)
            if keeper.is_preempted:
                return self._preempted(progress, keeper.written)
            report = self._conclude(progress)
            keeper.finish()
        return report

    def _preempted(self, progress: Progress, written: int) -> Report:
        """The run stops after these steps; the newest checkpoint is after those that are ``written``."""
        where = "" if written == progress.step else f" from step {written}"
        self._console.say(
            f"preempted at step {progress.step} of {self._schedule.steps}: "
            f"the same command with --resume goes on{where}"
        )
        return replace(self._report, epochs=progress.epochs, preempted=True)

    def _conclude(self, progress: Progress) -> Report:
        """Score, check and save what was trained."""
        epochs, test = progress.epochs, self._setup.test
        self._require_finite_parameters()
        scores = test.scores() if test is not None else None
        _require_finite(scores)
        result = self._check(scores, epochs) if self._options.check else None
        self._save(epochs, scores)
        return replace(self._report, epochs=epochs, test=scores, check=result)

    def _snapshot(
        self, training: Training, validation: Evaluator | None, progress: Progress
    ) -> Checkpoint | None:
        """A checkpoint of now on rank 0. Collective; Diverged where parameters are not finite."""
        ends_epoch = progress.step % self._schedule.batches == 0
        if validation is None:
            precision = None
        elif ends_epoch and progress.epochs:
            precision = progress.epochs[-1].validation_precision
        else:
            precision = validation.scores().precision
        parameters, velocity = self._model.whole_parameters(), training.whole_velocity()
        self._agree_on_finite(all(np.isfinite(array).all() for array in parameters.values()))
        if self._job.rank > 0:
            return None
        environment = {**self._report.environment, **code()}
        plan = files.as_json(self._model.part.plan)
        digests = self._past.data, self._past.initial
        story = Story(progress, precision, self._options.as_json(), environment, plan, *digests)
        return Checkpoint(story, parameters, velocity)

    def _require_finite_parameters(self) -> None:
        """The loss of a step is that of the parameters before it: the last step's are looked at."""
        self._agree_on_finite(bool(np.isfinite(self._model.parameters.flat.to_host()).all()))

    def _agree_on_finite(self, finite: bool) -> None:
        """Diverged on all ranks, unless those that each knows of are."""
        if not all(self._job.comm.allgather(finite)):
            raise Diverged(
                "the last step left parameters that are not finite: nothing was written; try a smaller --lr"
            )

    def evaluate(self) -> Report:
        """Train nothing: score the test set, write the predictions."""
        test = self._setup.test
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
        return replace(self._report, test=scores)

    def _check(self, test: Scores | None, epochs: list[Epoch]) -> check.Check:
        """The check on rank 0, while the others sleep; its result on all."""
        result = None
        with self._phases.phase("check"):
            trained = self._model.whole_parameters()
            if self._job.rank == 0:
                held_out = test_set(self._dataset) or validation_set(self._dataset, self._options)
                precision = test.precision if test else epochs[-1].validation_precision if epochs else None
                result = check.compare(
                    trained,
                    self._initial,
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
        with self._phases.phase("save"):
            trained = self._model.whole_parameters()
        with self._phases.phase("save"), self._job.together():
            if self._job.rank == 0:
                story = {
                    "options": self._options.as_json(),
                    "environment": self._report.environment,
                    "epochs": len(epochs),
                    "test_precision": scores.precision if scores is not None else None,
                }
                parameters.save(self._options.save, trained, story)
