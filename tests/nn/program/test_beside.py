"""nn/program/beside.py: which operations run beside the others, and that order is kept where it matters."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from nn.autotune.listed_step import Task, on_null
from nn.launch.column_sums import ColumnSums
from nn.launch.elementwise import ActivationBackward
from nn.launch.kernels import Kernels
from nn.model.net_text import IMAGES, make_network
from nn.parallel.plan import Plan
from nn.program import rank_model
from nn.program.beside import MOST_BYTES, place_beside
from nn.program.operations import BACKWARD, FORWARD, Operation
from nn.program.rewrite import overlap
from nn.program.step_memory import Placed, StepMemory
from pyrt.arrays import DeviceArray
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KernelLibrary
from tests import spread

HOPPER = DeviceProperties("a GPU", "sm_90a", 132, 232448)


def step_of(net, math="float32", batch=128, ranks=1, exchange="host", conv="auto"):
    network = make_network(net, *IMAGES.get(net, ((28, 28, 1), 10)), "softmax")
    task = Task(network, batch, math=math, conv=conv)
    return on_null(task, Plan.data(ranks, network.depth), HOPPER, exchange=exchange)


def operations_of(items):
    return [item for item in items if isinstance(item, Operation)]


def conflict(one, other):
    """Whether the order of two operations matters."""
    pairs = itertools.chain(
        itertools.product(one.writes, (*other.reads, *other.writes)),
        itertools.product(one.reads, other.writes),
    )
    return any(overlap(*pair) for pair in pairs)


def test_gradients_of_parameters_run_beside_the_way_back():
    operations = operations_of(step_of("lenet5").items)
    beside = [item.name for item in operations if item.beside]
    assert beside == ["sums of the blocks", "backward GEMM 4", "backward GEMM 6"]
    assert not operations[-1].beside


def test_a_convolution_of_few_channels_never_runs_beside_others():
    operations = operations_of(step_of("vgg-small", "tf32").items)
    beside = [item for item in operations if item.beside and item.work.convolution is not None]
    assert len(beside) == 5  # of six: the first layer's has three channels
    assert all(item.work.convolution.window.channels > 3 for item in beside)


@pytest.mark.parametrize(("batch", "waiting"), [(128, []), (3000, ["backward convolution 7"])])
def test_what_fills_the_device_waits_for_all(batch, waiting):
    operations = operations_of(step_of("lenet5", batch=batch).items)
    assert [item.name for item in operations if item.waits_for_beside] == waiting


@pytest.mark.parametrize(("net", "conv"), [("mnist-conv", "im2col"), ("vgg16", "auto")])
def test_what_makes_large_matrices_runs_alone(net, conv):
    """Winograd's tiles make vgg16's gradients of 256 channels and more: these run alone."""
    operations = operations_of(step_of(net, conv=conv).items)
    layers = {item.layer for item in operations if item.beside and item.work.convolution is not None}
    assert layers == ({2, 3, 4, 5} if net == "vgg16" else set())


@pytest.mark.parametrize("exchange", ["host", "device", "blocking", "hierarchical"])
def test_nothing_runs_beside_where_the_host_divides_a_step(exchange):
    """Or gradients leave one by one."""
    assert not any(item.beside for item in operations_of(step_of("lenet5", ranks=2, exchange=exchange).items))


def test_something_runs_beside_where_kernels_sum_at_the_end():
    items = step_of("lenet5", ranks=2, exchange="peer").items
    assert any(item.beside for item in operations_of(items))


NETS = [*(net for net in IMAGES if net != "alexnet"), "conv3x3x8,relu,dense16,tanh,dense12,dense10"]


@pytest.fixture
def without_places(monkeypatch):
    """Arrays stay at addresses of their own."""
    monkeypatch.setattr(StepMemory, "place", lambda memory, items, results: Placed(list(items), []))


def key(operation):
    """Identify an operation in two lists of the same step, which have the same addresses."""
    return operation.name, tuple(array.pointer for array in operation.writes)


@pytest.mark.parametrize(("net", "math"), spread(NETS, ["float32", "bf16"], by=2))
def test_order_is_kept(monkeypatch, without_places, net, math):
    """Whatever touches what an operation writes stays behind or before it."""
    operations = operations_of(step_of(net, math, batch=16).items)
    monkeypatch.setattr(rank_model, "place_beside", lambda items, gradients, kernels: items)
    before = {
        key(item): place for place, item in enumerate(operations_of(step_of(net, math, batch=16).items))
    }
    assert len(before) == len(operations)
    for one, other in itertools.combinations(operations, 2):
        assert before[key(one)] < before[key(other)] or not conflict(one, other)


@pytest.mark.parametrize(("net", "math"), spread(NETS, ["float32", "bf16"], by=2))
def test_nothing_touches_what_may_still_run(net, math):
    """Where arrays share memory, too."""
    pending = []
    operations = operations_of(step_of(net, math, batch=16).items)
    assert any(item.waits_for_beside for item in operations) == (net == "vgg16")
    for item in operations:
        pending = [] if item.waits_for_beside else pending
        if item.beside:
            pending.append(item)
        else:
            assert not any(conflict(item, other) for other in pending), item.name
            kept = {array.pointer: array for one in pending if item.layer < one.layer for array in one.reads}
            assert sum(array.nbytes for array in kept.values()) <= MOST_BYTES


@pytest.mark.parametrize(
    ("net", "math"), spread([*NETS, "dense72,tanh,dense70,relu,dense10"], ["float32", "bf16"], by=2)
)
def test_what_starts_early_reads_nothing_of_the_kernel_before_it(net, math):
    """That one is on the same stream, and had waited."""
    for before, item in itertools.pairwise(operations_of(step_of(net, math, batch=160).items)):
        assert getattr(item.work, "starts_early", False) == item.starts_early
        if item.starts_early:
            assert not item.beside and not before.beside and not before.starts_early
            pairs = itertools.product(before.writes, item.reads)
            assert not any(overlap(*pair) for pair in pairs), item.name


class List:
    """Operations on arrays of one device, of which ``gradients`` are those of parameters."""

    def __init__(self):
        self.driver = NullDriver(HOPPER)
        self.kernels = Kernels(KernelLibrary(self.driver), np.float32)
        self.gradients = DeviceArray.empty(self.driver, (64,), np.float32)

    def matrix(self):
        return DeviceArray.empty(self.driver, (4, 8), np.float32)

    def sums(self, X, first, part=BACKWARD):
        return Operation(f"sums at {first}", part, ColumnSums(X, self.gradients.rows(first, first + 8)))

    def change(self, A, dA):
        return Operation("change", BACKWARD, ActivationBackward(A, dA, "relu"))

    def placed(self, items):
        return [
            (item.name, item.beside, item.waits_for_beside)
            for item in place_beside(items, self.gradients, self.kernels)
        ]


def test_what_writes_what_is_read_beside_waits():
    made = List()
    X, A, B = made.matrix(), made.matrix(), made.matrix()
    items = [made.change(A, X), made.sums(X, 0), made.change(A, B), made.change(A, X), made.change(A, X)]
    assert made.placed(items) == [
        ("change", False, False),
        ("sums at 0", True, False),
        ("change", False, False),
        ("change", False, True),
        ("change", False, False),
    ]


def test_an_operation_moves_up_to_what_it_reads():
    made = List()
    X, A, B = made.matrix(), made.matrix(), made.matrix()
    items = [made.change(A, X), made.change(A, B), made.sums(X, 0), made.sums(B, 8), made.change(X, A)]
    names = [name for name, _, _ in made.placed(items)]
    assert names == ["change", "sums at 0", "change", "sums at 8", "change"]


def test_it_stays_in_its_part():
    """Parts run one after the other, whatever the list says."""
    made = List()
    X, A = made.matrix(), made.matrix()
    forward = replace(made.change(A, A), part=FORWARD)
    items = [replace(made.change(A, X), part=FORWARD), forward, made.sums(X, 0), made.change(X, A)]
    names = [name for name, _, _ in made.placed(items)]
    assert names == ["change", "change", "sums at 0", "change"]


def test_the_last_operations_stay():
    made = List()
    X, A = made.matrix(), made.matrix()
    items = [made.change(A, X), made.sums(X, 0), made.sums(X, 8)]
    assert not any(beside for _, beside, _ in made.placed(items))


def test_sums_of_the_forward_pass_stay():
    made = List()
    X, A = made.matrix(), made.matrix()
    items = [made.sums(X, 0, FORWARD), made.change(A, X)]
    assert not any(beside for _, beside, _ in made.placed(items))


def test_what_began_beside_the_kernel_before_it_waits_behind_one_on_another_stream():
    early = replace(step_of("mnist-conv", "bf16").items[0], part=BACKWARD)
    assert early.starts_early
    made = List()
    X, A = made.matrix(), made.matrix()
    items = place_beside([made.change(A, X), made.sums(X, 0), early], made.gradients, made.kernels)
    assert [item.beside for item in items] == [False, True, False]
    assert not items[2].starts_early
    assert not items[2].work.starts_early
