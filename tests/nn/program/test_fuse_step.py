"""nn/program/fuse_step.py: a small network's step as one kernel; what else is in the step keeps it apart."""

import dataclasses

import pytest

from nn.autotune.listed_step import Task, on_null
from nn.launch.arrays_of import with_arrays
from nn.model.net_text import make_network
from nn.parallel.plan import Plan
from nn.program import operations
from nn.program.fuse_step import LENGTH, match_step
from nn.program.operations import BACKWARD, Operation
from pyrt.driver.null import DeviceProperties

HOPPER = DeviceProperties("a GPU", "sm_90a", 132, 232448)
WHOLE = "scale pixels to backward GEMM 3"
NET = "dense32,relu,dense10"
BUCKET = 10
"""The place of the first bucket in the step."""


def listed(net=NET, batch=64, device=HOPPER, ranks=1, **task):
    network = make_network(net, (28, 28, 1), 10, task.pop("loss", "softmax"))
    plan = Plan.data(ranks, network.depth)
    return on_null(Task(network, batch, **task), plan, device, counts_activations=False).items


def names(items):
    return [item.name for item in items if isinstance(item, Operation)]


@pytest.mark.parametrize("math", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("net, batch", [(NET, 64), ("dense128,sigmoid,dense10", 256), (NET, 1)])
def test_a_small_step_is_one_operation(net, batch, math):
    whole, *buckets = listed(net, batch, math=math)
    assert whole.name == WHOLE and [item.bucket for item in buckets] == [0, 1]
    parts = [item for item in listed(net, batch, device=DeviceProperties()) if isinstance(item, Operation)]
    assert whole.flops == sum(item.flops for item in parts)
    assert len(whole.writes) == 6  # four gradients, the loss, the cursor


@pytest.mark.parametrize(
    "step",
    [
        {"batch": 257},
        {"net": "dense129,relu,dense10"},
        {"net": "dense32,relu,dropout0.5,dense10"},
        {"net": "dense32,relu,dense32,relu,dense10"},
        {"net": "dense10"},
        {"net": "conv3x3x4,relu,dense10"},
        {"gemm": "wgmma"},
        {"dtype": "float64"},
        {"ranks": 2},
        {"device": DeviceProperties("a GPU", "sm_75", 40, 65536)},
        {"device": DeviceProperties("a GPU", "sm_90a", 132, 20000)},
    ],
    ids=str,
)
def test_another_step_stays_apart(step):
    assert WHOLE not in names(listed(**step))


@pytest.fixture
def plain():
    """A step as it is before rules see it."""
    return listed(device=DeviceProperties())


def test_the_arrays_are_those_of_the_step(plain):
    step = match_step(plain)
    assert step is not None and step.sizes == (64, 784, 32, 10)
    by_name = {item.name: item.work for item in plain if isinstance(item, Operation)}
    assert step.dW1 == by_name["backward GEMM 3"].D and step.dW2 == by_name["backward GEMM 2"].D
    assert (step.db1, step.db2) == tuple(by_name[f"bias gradient {layer}"].sums for layer in (1, 2))
    assert step.loss_sum == by_name["sum of losses"].sums


@pytest.mark.parametrize("missing", range(LENGTH))
def test_without_one_of_its_items_it_is_none(plain, missing):
    del plain[missing]
    assert match_step(plain) is None


@pytest.mark.parametrize("place", [place for place in range(LENGTH) if place != BUCKET])
def test_with_an_item_of_another_step_it_is_none(plain, place):
    """Whose arrays lie elsewhere."""
    work = with_arrays(
        plain[place].work, lambda array: dataclasses.replace(array, pointer=array.pointer + 2**40)
    )
    plain[place] = dataclasses.replace(plain[place], work=work)
    assert match_step(plain) is None


@pytest.mark.parametrize("name", ["scale pixels", "bias and activation 1", "backward GEMM 1"])
def test_what_a_later_item_reads_is_kept(plain, name):
    """The images, the hidden layer's A and its dZ."""
    (item,) = (one for one in plain if isinstance(one, Operation) and one.name == name)
    reader = operations.zeros("a reader", BACKWARD, item.writes[0])
    assert match_step([*plain, reader]) is not None
    reader = operations.take_columns("a reader", BACKWARD, item.writes[0], plain[LENGTH - 1].work.D)
    assert match_step([*plain, reader]) is None
