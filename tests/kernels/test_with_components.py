"""Kernels that leave images as bf16 components too: the images as before, the components those of a split."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from nn.launch.conv.convolution import Convolution
from nn.launch.conv.gathered import operands_of, result_of
from nn.launch.conv.implicit import ImplicitConvolution, tilings
from nn.launch.conv.narrow import bind_narrow
from nn.launch.conv.with_components import WithComponents
from nn.launch.gemm.components import Components, Split, split
from nn.launch.gemm.product import Epilogue
from nn.launch.gemm.versions import TENSOR_ARCHITECTURES
from nn.launch.kernels import Kernels
from nn.launch.pool import Pool
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from tests import few, spread

COUNTS = few([1, 3], of=[1, 2, 3])

NARROW = {
    "sliding": ((5, 7, 3), (3, 3), 1, 1, 8, 3),
    "sliding, 12 filters": ((14, 9, 2), (5, 5), 1, 0, 12, 2),
    "8 filters": ((9, 7, 1), (3, 3), 2, 1, 8, 5),
    "2 filters": ((6, 5, 3), (2, 2), 1, 0, 2, 4),
    "24 filters, more than a block of windows": ((8, 9, 2), (2, 3), 2, 1, 24, 7),
    "many windows": ((8, 8, 1), (1, 2), 1, 0, 10, 41),
}
"""Shape of an image, size of the window, stride, padding, filters, samples."""

WIDE = {
    "padding": ((5, 7, 16), (3, 3), 1, 1, 24, 3),
    "several tiles across": ((6, 5, 8), (2, 2), 1, 0, 136, 5),
    "stride": ((7, 9, 24), (3, 2), 2, 1, 8, 3),
}

POOLS = {
    "four channels": ((5, 7, 12), 3, 2),
    "two": ((4, 6, 6), 2, 2),
    "one": ((5, 4, 5), 2, 1),
}
"""Shape of an image, size, stride."""


@pytest.fixture
def kernels(library):
    return Kernels(library, np.float32, conv="direct")


def reals(rng, *shape):
    return rng.standard_normal(shape).astype("f4")


def convolution(array, rng, image, size, stride, padding, filters, samples):
    """A convolution of random images, and what follows it."""
    window = Window.over("conv", image, size, stride, padding)
    images, weights = reals(rng, samples, int(np.prod(image))), reals(rng, filters, window.pixels)
    outputs = array(np.full((samples, window.places * filters), np.nan, "f4"))
    work = Convolution(array(images), outputs, array(weights), window)
    return work, Epilogue(bias=array(reals(rng, filters)), activation="tanh")


def check(device, kernels, maker, images, count, bind):
    """Run with and without; the components are NumPy's of the images, to the bit."""
    components = Components.empty(device.driver, count, *images.shape, packed=True)
    device.arrays.append(components.array)
    work = WithComponents(maker, Split(((images, components),)), bind)
    device.run(bind(kernels, None))
    alone = images.to_host()
    assert not np.isnan(alone).any() and alone.min() < alone.max()
    images.set(np.full(images.shape, np.nan, "f4"))
    components.numbers.set(np.full(components.numbers.shape, 0x7FC0, np.uint16))
    device.run(work.on_device(kernels))
    np.testing.assert_array_equal(images.to_host(), alone)
    found = components.numbers.to_host().reshape(count, *images.shape)
    np.testing.assert_array_equal(found, split(alone, count))


@pytest.mark.sanitizer
@pytest.mark.parametrize(("count", "name"), spread(COUNTS, list(NARROW), by=2))
def test_convolutions_of_few_channels(kernels, device, rng, count, name):
    work, epilogue = convolution(device.array, rng, *NARROW[name])

    def bind(kernels, components):
        return bind_narrow(kernels, work, epilogue, components)

    check(device, kernels, work, result_of(work), count, bind)


@pytest.mark.parametrize("is_max", [True, False], ids=["max", "mean"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("case", POOLS.values(), ids=POOLS)
def test_pooling(kernels, device, rng, case, count, is_max):
    """Of infinities and of the largest numbers too."""
    image, size, stride = case
    window = Window.over("pool", image, (size, size), stride, 0)
    host = reals(rng, 3, int(np.prod(image)))
    host[rng.random(host.shape) < 0.05] = np.inf if is_max else 3e38 / size**2
    shape = 3, window.places * window.channels
    outputs = device.array(np.full(shape, np.nan, "f4"))
    places = device.array(np.zeros(shape, np.uint8)) if is_max else None
    work = Pool(device.array(host), outputs, places, window)
    check(device, kernels, work, outputs.reshape(outputs.size // image[2], image[2]), count, work.bind)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("count", "name"), spread(COUNTS, list(WIDE), by=2))
def test_convolutions_on_tensor_cores(library, device, rng, count, name):
    """In whole products, and in parts of k."""
    if library.driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    kernels = Kernels(library, np.float32, conv="implicit")
    work, epilogue = convolution(device.array, rng, *WIDE[name])
    operands = []
    for array, packed in zip(operands_of(work), (True, False), strict=True):
        operands.append(Components.empty(device.driver, count, *array.shape, packed=packed))
        device.arrays.append(operands[-1].array)
        device.run(Split(((array, operands[-1]),)).on_device(kernels))
    made = ImplicitConvolution(work, *operands, epilogue)
    cuts = {
        (cut.rows, cut.columns, min(cut.parts, 2)): cut for cut in tilings(made, library.driver.shared_memory)
    }
    for cut in few([*cuts.values()][:2], of=list(cuts.values())):
        made = replace(made, tiling=cut)
        check(device, kernels, made, made.result, count, made.bind)
    with pytest.raises(ValueError, match="components of the result"):
        made.bind(kernels, Components.empty(device.driver, count % 3 + 1, *made.result.shape, packed=True))


def test_numpy_splits_what_it_makes(rng):
    array = partial(DeviceArray.from_host, CpuDriver())
    work, _ = convolution(array, rng, *NARROW["8 filters"])
    images = result_of(work)
    components = Components.empty(work.images.driver, 2, *images.shape, packed=True)
    made = WithComponents(work, Split(((images, components),)), lambda kernels, components: None)
    made.in_numpy()()
    np.testing.assert_array_equal(
        components.numbers.to_host().reshape(2, *images.shape), split(images.to_host(), 2)
    )
    assert made.reads == work.reads and made.convolution is work
    assert made.writes[0] is work.outputs and made.results[1] is components
    assert made.flops == work.flops + 2 * images.size
