"""Images as bf16 components: the kernel that makes them writes these too, so that no launch splits them."""

import numpy as np
import pytest

from nn.autotune.listed_step import Task, on_null
from nn.launch.conv.with_components import WithComponents
from nn.model.net_text import IMAGES, make_network
from nn.parallel.plan import Plan
from nn.program.operations import Operation
from tests import few
from tests.nn.autotune.rates import HOPPER


def step(net, image, classes, batch=16, **settings):
    """The operations of a step on tensor cores."""
    network = make_network(net, image, classes, "softmax")
    task = Task(network, batch, conv="implicit", **settings)
    listed = on_null(task, Plan.data(1, len(network.numbers)), HOPPER)
    return [item for item in listed.items if isinstance(item, Operation)]


def makers(operations):
    return [item.name for item in operations if isinstance(item.work, WithComponents)]


MAKERS = {
    "mnist-conv": ["forward convolution 1"],
    "vgg-small": [
        "forward convolution 1",
        "pooling 2",
        "forward convolution 3",
        "pooling 4",
        "forward convolution 5",
    ],
}


@pytest.mark.parametrize("net", MAKERS)
@pytest.mark.parametrize("math", few(["float32"], of=["float32", "tf32", "bf16"]))
def test_no_launch_splits_images(net, math):
    operations = step(net, *IMAGES[net], math=math)
    assert "split images" not in {item.name for item in operations}
    assert makers(operations) == MAKERS[net]


def test_bytes_are_those_of_images_and_components():
    """Of 6 x 6 windows: 16 filters in float32 and, as three components, in 2 bytes each."""
    first, *_ = (
        item for item in step("conv3x3x16,relu,conv3x3x24,relu,dense4", (8, 8, 3), 4) if makers([item])
    )
    pixels, filters, outputs = 16 * 8 * 8 * 3, 16 * 27 + 16, 16 * 36 * 16
    assert first.bytes == 4 * (pixels + filters + outputs) + 3 * 2 * outputs
    assert first.flops == 16 * 36 * 16 * (2 * 27 + 2 + 3)


def test_images_are_split_where_their_kernel_cannot():
    """Images of data, as they come. Copies gather 12 channels: they leave no components, and read dZ too."""
    operations = step("conv3x3x16,relu,dense4", (8, 8, 16), 4)
    assert [item.name for item in operations].count("split images") == 1 and not makers(operations)
    operations = step("conv3x3x12p1,relu,conv3x3x16,relu,conv3x3x16,relu,dense4", (8, 8, 3), 4)
    assert makers(operations) == []
    assert [item.reads[0].shape for item in operations if item.name == "split images"] == [(16 * 36, 16)] * 2


def test_what_is_written_over_before_it_is_read_has_no_components():
    """Dropout keeps some of what a convolution has made, in the same memory or in another."""
    operations = step("conv3x3x16p1,relu,dropout0.5,conv3x3x16,relu,dense4", (8, 8, 3), 4)
    assert makers(operations) == []
    names = [item.name for item in operations]
    assert names.index("dropout 1") < names.index("split images") < names.index("forward convolution 2")


def test_components_are_known_until_the_way_back():
    """The filters' gradient reads the same ones as the convolution; f' is taken from them too."""
    by_name = {item.name: item for item in step("conv3x3x16,relu,conv3x3x24,relu,dense4", (8, 8, 3), 4)}
    components = by_name["forward convolution 1"].writes[1]
    readers = [
        item for item in by_name.values() if any(components.pointer == array.pointer for array in item.reads)
    ]
    assert len(readers) == 3
    names = {item.name for item in readers}
    assert names == {"forward convolution 2", "activation gradient 1", "backward convolution 4"}
    read = {(np.dtype(item.reads[0].dtype), item.reads[0].pointer) for item in readers}
    assert read == {(np.dtype(np.uint16), components.pointer)}
    assert not any(item.starts_early for item in readers[:1])


def test_filters_of_all_layers_are_turned_in_one_launch():
    """Before the first gradient of images that reads them, on the way back."""
    operations = step("vgg-small", *IMAGES["vgg-small"])
    (place,) = (place for place, item in enumerate(operations) if item.name == "turn filters")
    turned = operations[place].writes
    later = operations[place:]
    assert [array.shape for array in operations[place].reads] == [
        (filters, 9 * channels)
        for filters, channels in [(256, 256), (256, 128), (128, 128), (128, 64), (64, 64)]
    ]
    readers = {
        number
        for number, item in enumerate(later)
        for array in item.reads
        for one in turned
        if (array.pointer, array.shape) == (one.pointer, one.shape)
    }
    assert len(readers) == 5 and min(readers) == 1
