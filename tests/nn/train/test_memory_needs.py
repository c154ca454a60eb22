"""nn/train/memory_needs.py: runs take the memory that was counted, and what does not fit ends all ranks."""

import dataclasses
import itertools

import numpy as np
import pytest

from nn.app import report
from nn.app.load import problem_of
from nn.app.options import Options
from nn.input import load as load_data
from nn.input import placement, streamed
from nn.launch.conv import convolution
from nn.launch.gemm.versions import GEMM_VERSIONS, runs_gemm
from nn.parallel import buckets, plan_files
from nn.parallel.plan import Plan
from nn.parallel.shard import Shard
from nn.train.memory_needs import Pool, lines_of, rehearse
from nn.train.rank_resources import RankGroups, RankResources
from nn.train.training import Training
from pyrt import devices
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.emulated import EmulatedDriver
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.errors import UserError
from pyrt.exchange import host
from pyrt.exchange.choose import choose
from pyrt.exchange.device import verdict
from pyrt.exchange.registry import choices
from pyrt.host_memory import HostMemory
from pyrt.job import join
from tests import LONG, few
from train import train

SMALL = Options(hidden=(9, 7), epochs=1, batch=20, lr=0.1, momentum=0.0, val_fraction=0.1, device="cpu")


@pytest.fixture
def digits(tmp_path):
    """Random images in three classes, of which the last batch has fewer, and a test set."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (62, 3, 4)).astype(np.uint8), np.arange(62) % 3
    np.savez(tmp_path / "d.npz", x_train=images[:55], y_train=labels[:55], x_test=images, y_test=labels)
    return str(tmp_path / "d.npz")


@pytest.fixture
def small_pieces(monkeypatch):
    """So small that what is cut into several is."""
    monkeypatch.setattr(host, "PIECE_BYTES", 200)
    monkeypatch.setattr(buckets, "PANEL_BYTES", 200)
    monkeypatch.setattr(streamed, "CHUNK_BYTES", 2 * 20 * 12)


class Counted:
    """Counts the memory that the classes of drivers hand out, apart from their ledgers."""

    def __init__(self, monkeypatch, *kinds):
        self.device = self.pinned = 0
        self._sizes, self._ours = {}, []
        self.lines = []
        names = "allocate", "allocate_exportable", "allocate_pinned", "allocate_mapped", "pin", "free"
        for kind, name in itertools.product(set(kinds), names):
            monkeypatch.setattr(kind, name, getattr(self, name)(getattr(kind, name)))
        begin = Training.begin

        def note(training, *arguments):
            """All is there, and nothing has been closed."""
            driver, model = training._resources.driver, training._model
            self.lines = lines_of(driver.ledger, model.shard, model.parameters.layout)
            self.device, self.pinned = sum(self._sizes.values()), sum(self._ours)
            return begin(training, *arguments)

        monkeypatch.setattr(Training, "begin", note)

    def allocate(self, real):
        def allocate(driver, nbytes):
            pointer = real(driver, nbytes)
            if type(driver) is not NullDriver:
                self._sizes[pointer] = nbytes
            return pointer

        return allocate

    allocate_exportable = allocate

    def free(self, real):
        return lambda driver, pointer: (self._sizes.pop(pointer, None), real(driver, pointer))[1]

    def allocate_pinned(self, real):
        def allocate_pinned(driver, nbytes, write_only=False):
            self._ours.append(nbytes)
            return real(driver, nbytes, write_only)

        return allocate_pinned

    def pin(self, real):
        def pin(driver, block, is_own):
            if is_own and type(driver) is not NullDriver:
                self._ours.append(block.nbytes)
            return real(driver, block, is_own)

        return pin

    def allocate_mapped(self, real):
        def allocate_mapped(driver, nbytes):
            counted = len(self._ours)
            block = real(driver, nbytes)
            self._ours[counted:] = [nbytes]  # a driver may pin it by the other call, which counts too
            return block

        return allocate_mapped


CASES = [
    {},
    {"momentum": 0.9, "dtype": "float64", "hidden": (5,)},
    {"plan": "model", "hidden": (9, 7, 6)},
    {"placement": "stream", "samples": 70, "momentum": 0.5},
    {"optimiser": "adam", "hidden": (9, 5)},
]


def differ(monkeypatch, kind, cases):
    """List the cases in which a run takes other memory than was counted before, on this rank.

    A parameter server may be on the CPU, where a node has fewer GPUs than ranks.
    """
    wrong, mine, largest = [], [], report.largest
    monkeypatch.setattr(report, "largest", lambda needs, job: (mine.append(needs), largest(needs, job))[1])
    for case in cases:
        with monkeypatch.context() as patch:
            counted = Counted(patch, kind, CpuDriver)
            train(dataclasses.replace(SMALL, **case))
        needs = mine.pop()
        expected, got = (needs.device, needs.pinned), (counted.device, counted.pinned)
        if expected != got or needs.lines != counted.lines or needs.lines[-1].device:
            wrong.append((case, expected, got, needs.lines, counted.lines))
    return wrong


@pytest.mark.parallel(few([2], of=[1, 2, 4]))
def test_a_run_on_the_cpu_takes_what_was_counted(digits, small_pieces, monkeypatch, tmp_path):
    ranks, exchanges = join().size, ("root", "blocking", "host", "device")
    cases = [
        {"data": digits, "exchange": exchanges[(number + more) % 4], **case}
        for number, case in enumerate(CASES)
        for more in range(2 if ranks > 1 and LONG else 1)
    ]
    if ranks == 2:
        cases.append({"data": digits, "exchange": "hogwild", "atomic": True})
        cases.append({"data": digits, "exchange": "server", "optimiser": "adam"})
        mixed = join().comm.bcast(tmp_path) / "plan.json"  # of two exchanges
        plan_files.save(mixed, Plan(1, 2, ("rows", "samples", "columns")))
        cases.append({"data": digits, "plan": str(mixed), "optimiser": "adam", "exchange": "host"})
    if ranks == 4:
        cases = [{"data": digits, "plan": "model", "grid": "2x2", "exchange": name} for name in exchanges]
    assert not differ(monkeypatch, CpuDriver, cases)


@pytest.mark.parallel([1, 2])
def test_a_run_of_kernels_takes_what_was_counted(driver, digits, small_pieces, monkeypatch):
    """Of all exchanges and products, from graphs and not; some layers are for tensor cores."""
    where = {"device": driver.name, "data": digits, "share_gpus": True}
    exchanges = [name for name in choices() if name != "device" or verdict(join(), driver).is_proven]
    if join().size == 1:
        some = few(CASES[3:], of=CASES)
        cases = [{**case, "graph": bool(number % 2)} for number, case in enumerate(some)]
        versions = [version for version in GEMM_VERSIONS if runs_gemm(version, driver.architecture)]
        versions = few(versions[-1:], of=versions)
        cases += [{"gemm": version, "hidden": (72, 70), "batch": 50} for version in versions]
    else:
        plans = [{}, {"plan": "model"}]
        cases = [{"exchange": name, **plans[number % 2]} for number, name in enumerate(exchanges)]
        other = [
            {"exchange": "hogwild"},
            {"exchange": "server", "momentum": 0.5},
            {"exchange": "peer", "placement": "stream"},
            {"exchange": "host", "graph": False},
        ]
        cases = [*few(cases[2:], of=cases), *few(other[:2], of=other)]
    assert not differ(monkeypatch, type(driver), [{**where, **case} for case in cases])


def test_the_table_has_a_line_for_each_layer(digits):
    options = dataclasses.replace(SMALL, data=digits, momentum=0.5, memory=True)
    needs = train(options).memory
    lines = {line.name: line for line in needs.lines}
    assert list(lines)[:4] == ["input", "layer 1", "layer 2", "layer 3"]
    padded = 4 * (128 + 64)  # 9 x 12 weights and 9 biases, each up to a multiple of 64
    first = lines["layer 1"]
    assert (first.weights, first.gradients, first.momentum) == (padded, padded, padded)
    assert first.workspaces == padded - 4 * (64 - 9)  # NumPy's update, without padding at the end
    # What the first layer takes and makes, and its gradient, are there at once; 9 and 7 units, 3 classes.
    arrays = 20 * 12, 20 * 9, 20 * 7, 20 * 9, 20 * 7, 20 * 3, 20
    most = sum(-(-4 * size // 256) * 256 for size in arrays)
    assert 4 * 20 * (12 + 9 + 9) <= lines["all layers"].activations < most
    assert lines["batches"].buffers >= 2 * 20 * (12 + 4) and lines["batches"].pinned == 3 * 20 * (12 + 4)
    assert needs.device == sum(line.device for line in needs.lines)
    assert lines["other"].device == 0  # all that is allocated has a name


def test_adam_keeps_two_arrays_of_each_layer_and_counts_steps(digits):
    plain, adam = (
        train(dataclasses.replace(SMALL, data=digits, memory=True, optimiser=optimiser)).memory
        for optimiser in ("sgd", "adam")
    )
    for one, other in zip(plain.lines, adam.lines, strict=True):
        assert one.momentum == 0 and other.momentum == 2 * one.weights, one.name
        assert other.buffers - one.buffers == (3 * 8 if one.name == "losses" else 0)
    assert adam.lines[-1].device == 0


def test_components_and_parts_of_products_are_their_layers():
    """On a device that is not here: of the course's network, its products on tensor cores."""
    gpu = NullDriver(DeviceProperties("a GPU", "sm_90a", 132, 232448), "cuda")
    problem = problem_of(Options(samples=3600), load_data("embedded"))
    shard = Shard.alone(problem.network)
    groups = RankGroups.of(choose("auto", gpu, join().alone()), shard)
    needs, sources = rehearse(problem, shard, groups, join().alone(), gpu, "resident")
    assert all(
        any(f'/{file}.cu"' in source for source in sources)
        for file in ("gemm/wgmma", "nn/fused_classifier", "nn/update", "nn/pixels")
    )
    lines = {line.name: line for line in needs.lines}
    assert lines["layer 1"].weights - lines["layer 1"].gradients == 2 * (3 * 512 * 832 + 64)  # in bf16
    pixels, hidden = 2 * 3000 * 832, 2 * 3 * 3000 * 512  # the gradient of what is hidden, as components
    assert pixels + hidden <= lines["all layers"].activations < 4 * 3000 * (2 * 784 + 4 * 512)
    assert lines["batches"].buffers >= 3600 * (784 + 4)
    assert lines["other"].device == 0


@pytest.mark.parametrize("conv", ["im2col", "direct"])
def test_convolutions_share_the_matrix_of_windows(conv, monkeypatch):
    """It is as large as the largest one, and at most so large that some samples fit in."""
    gpu = NullDriver(DeviceProperties("a GPU", "sm_80", 108, 166912), "cuda")

    data = load_data("synthetic:12x12x1:10:100")

    def windows(net):
        problem = problem_of(Options(net=net, batch=50, val_fraction=0.0, conv=conv), data)
        shard = Shard.alone(problem.network)
        groups = RankGroups.of(choose("auto", gpu, join().alone()), shard)
        needs, _ = rehearse(problem, shard, groups, join().alone(), gpu, "resident")
        (line,) = (line for line in needs.lines if line.name == "all layers")
        assert sum(each.workspaces for each in needs.lines) < small
        return line.activations

    small, large = 4 * 50 * 10 * 10 * 9, 4 * 50 * 8 * 8 * (9 * 4)
    images = 4 * 50 * 2 * (12 * 12 + 10 * 10 * 4 + 8 * 8 * (8 + 2))  # and their gradients
    nets = "conv3x3x4", "conv3x3x4,relu,conv3x3x8", "conv3x3x4,relu,conv3x3x8,relu,conv1x1x2"
    shared = [windows(f"{net},dense10") for net in nets]
    if conv == "direct":
        assert max(shared) < images
        return
    assert small < shared[0] < large < min(shared[1:]) and max(shared[1:]) < large + images
    monkeypatch.setattr(convolution, "WORKSPACE_BYTES", large // 5)
    assert windows(f"{nets[1]},dense10") < large // 5 + images


def test_what_does_not_fit_is_refused_before_training(digits, monkeypatch):
    monkeypatch.setattr(CpuDriver, "allocate", lambda *_: pytest.fail("allocated"))
    free = train(dataclasses.replace(SMALL, data=digits, memory=True)).memory
    monkeypatch.setattr(HostMemory, "now", lambda: HostMemory(free.device + free.pinned - 1, 10**12))
    with pytest.raises(UserError, match=r"use a smaller --batch or --hidden, fewer ranks a node$") as caught:
        train(dataclasses.replace(SMALL, data=digits))
    assert "\n" not in str(caught.value)


@pytest.mark.parallel([2])
def test_ranks_of_a_node_share_its_memory(driver, digits, monkeypatch):
    """What fits for one rank does not for two. Where one has no room all end."""
    job = join()
    monkeypatch.setattr(devices, "assign", lambda visible, share_gpus: [0] * len(visible))  # all take one GPU
    options = dataclasses.replace(SMALL, data=digits, device=driver.name, share_gpus=True, exchange="host")
    needs = train(dataclasses.replace(options, placement="resident", memory=True)).memory
    free = {"now": needs.device + 1}
    monkeypatch.setattr(type(driver), "free_memory", lambda _: free["now"] if job.rank == 1 else 10**12)
    with pytest.raises(
        UserError, match=r"^2 ranks need .* on the device \(one of them .*--placement stream$"
    ):
        train(dataclasses.replace(options, placement="resident"))
    free["now"] = 2 * needs.device
    assert train(dataclasses.replace(options, placement="resident")).environment["placement"] == "resident"


def test_auto_decides_by_the_same_numbers(driver, digits, monkeypatch):
    options = dataclasses.replace(SMALL, data=digits, device=driver.name)
    needs = train(dataclasses.replace(options, memory=True)).memory
    for less, chosen in ((0, "resident"), (1, "stream")):
        free = needs.device + placement.MARGIN - less
        monkeypatch.setattr(type(driver), "free_memory", lambda _, free=free: free)
        assert train(dataclasses.replace(options, epochs=0)).environment["placement"] == chosen


class Ends:
    """Makes the allocations of one rank's driver fail from one of them on, once what was counted is built."""

    def __init__(self, monkeypatch, kind, error):
        self.left = None
        self.done = 0
        names = "allocate", "allocate_pinned", "allocate_mapped", "pin", "export_memory", "end_capture"
        for name in names:
            monkeypatch.setattr(kind, name, self._failing(getattr(kind, name), error))
        make = RankResources.make

        def armed(job, streams, *rest):
            self.armed = type(streams.driver) is kind
            return make(job, streams, *rest)

        self.armed = False
        monkeypatch.setattr(RankResources, "make", armed)

    def _failing(self, real, error):
        def call(driver, *arguments, **keywords):
            if self.armed and type(driver) is not NullDriver:
                self.done += 1
                if self.left is not None and self.done > self.left:
                    if real.__name__ == "end_capture":  # it ends, and there is no memory for its graph
                        real(driver, *arguments)
                    raise error("none is left")
            return real(driver, *arguments, **keywords)

        return call


def end_all(monkeypatch, kind, options, error):
    """Let each allocation, or each of some, of rank 1 fail: all ranks must end with the same error."""
    job = join()
    with monkeypatch.context() as patch:
        ends = Ends(patch, kind, error)
        train(options)
        count = job.comm.bcast(ends.done, 1)
        for place in range(0, count, max(1, count // (12 if LONG else 3))):
            ends.left, ends.done, ends.armed = place if job.rank == 1 else None, 0, False
            with pytest.raises(UserError, match="none is left"):
                train(options)


@pytest.mark.parallel([2])
@pytest.mark.parametrize("error", few([MemoryError], of=[UserError, MemoryError]))
def test_one_rank_without_memory_ends_all(digits, small_pieces, monkeypatch, error):
    for exchange, plan in (("host", "data"), ("device", "model")):
        options = dataclasses.replace(SMALL, data=digits, exchange=exchange, plan=plan, epochs=0)
        end_all(monkeypatch, CpuDriver, options, error)


SHARING = [("peer", "model"), ("peer", "data"), ("hierarchical", "data")]
"""Exchanges over memory that ranks share, and plans."""


@pytest.mark.long
@pytest.mark.parallel([2])
@pytest.mark.parametrize(("exchange", "plan"), few(SHARING[:1], of=SHARING))
def test_one_rank_without_memory_ends_all_that_share_theirs(driver, digits, monkeypatch, exchange, plan):
    """At graphs too; watchdogs take no rank for gone."""
    where = {"device": driver.name, "share_gpus": True, "exchange": exchange, "plan": plan}
    options = dataclasses.replace(SMALL, data=digits, epochs=0, **where)
    end_all(monkeypatch, type(driver), options, UserError)


class TestNullDriver:
    def test_it_stands_in_for_a_driver(self, driver):
        paper = NullDriver.like(driver)
        for name in (
            "name",
            "device_name",
            "architecture",
            "has_kernels",
            "multiprocessors",
            "shared_memory",
        ):
            assert getattr(paper, name) == getattr(driver, name), name

    def test_it_gives_more_than_there_is(self):
        paper = NullDriver(DeviceProperties())
        for nbytes in (0, 1, 1 << 45):
            assert len(paper.allocate_pinned(nbytes)) == nbytes
        assert paper.allocate(1 << 60) + (1 << 60) <= paper.allocate(1)
        assert paper.ledger.pinned.total() == (1 << 45) + 1


class TestPool:
    @pytest.mark.parametrize(("free", "fits"), [(12_300_000_000, True), (12_299_999_999, False)])
    def test_what_does_not_fit_is_one_line(self, free, fits):
        parts = {"weights": 10**9, "gradients": 0, "activations": 11_300_000_000}
        pool = Pool("on the device", 12_300_000_000, free, 1, parts, "a smaller --batch")
        if fits:
            return pool.require(stream=True)
        with pytest.raises(UserError) as caught:
            pool.require(stream=True)
        assert str(caught.value) == (
            "the run needs 12.3 GB on the device (weights 1.0 GB, activations 11.3 GB), which has 12.3 GB "
            "free: use a smaller --batch, or --placement stream"
        )


def test_the_emulated_device_refuses_what_the_host_has_not(monkeypatch):
    monkeypatch.setattr(HostMemory, "now", lambda: HostMemory(2 << 20, 3 << 20))
    driver = EmulatedDriver()
    driver.allocate(2 << 20)
    with pytest.raises(UserError, match="2 MB of GPU memory asked, 2 of 3 MB free: use a smaller"):
        driver.allocate((2 << 20) + 1)
    driver.close()
