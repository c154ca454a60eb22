"""gemm/layer.cu: products of dense layers with all that follows them, against float64."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from nn.launch.gemm.components import Components, split
from nn.launch.gemm.layer import LayerProduct, Left, bind_split, component_product
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.gemm.versions import TENSOR_ARCHITECTURES
from nn.launch.gemm.wgmma import ComponentProduct, Tiling, candidates, width_of
from nn.launch.kernels import Kernels
from nn.model import reference
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.null import DeviceProperties, NullDriver
from tests import few, spread
from tests.kernels.conftest import Device

M, N, K = 130, 71, 150
"""Ragged for every tile; an odd number of columns."""

ALL_TILES = [(64, 64), (128, 64), (192, 64), (64, 128), (128, 128), (192, 128), (128, 256)]

BAD = 0x7FC0
"""The bits of a NaN."""

TOLERANCE = {1: 2e-2, 2: 4e-5, 3: 1e-6}
"""Of the largest number, for so many components."""


@pytest.fixture
def cores(library):
    if library.driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    return Kernels(library, np.float32, "wgmma")


def components_of(device, x: np.ndarray, count: int) -> Components:
    """The components of a host array, between numbers that no kernel may read."""
    components = Components.empty(device.driver, count, *x.shape)
    device.arrays.append(components.array)
    bits = np.full(components.matrix.shape, BAD, np.uint16).reshape(count, -1, components.ld)
    bits[:, :, : x.shape[1]] = split(x, count)
    components.array.rows(0, bits.size).set(bits.reshape(-1))
    return components


def of_components(x: np.ndarray, count: int) -> np.ndarray:
    """What so many components of x add up to."""
    return (split(x, count).astype(np.uint32) << 16).view(np.float32).sum(axis=0)


def value_of(components: Components) -> np.ndarray:
    bits = components.matrix.to_host().reshape(components.count, components.rows, components.ld)
    return (bits[:, :, : components.columns].astype(np.uint32) << 16).view(np.float32).sum(axis=0)


def shaped(device, *shape: int) -> DeviceArray:
    """An array whose numbers no kernel reads, as products from components have them."""
    return device.poisoned(shape, "f4")


class Case:
    """Operands, and what NumPy makes of them in float64: `forward`, or on the way back."""

    def __init__(self, device, rng, count: int, activation: str, tiling: Tiling, sizes=(M, N, K)) -> None:
        self.device, self.rng, self.count, self.sizes = device, rng, count, sizes
        self.tiling = replace(tiling, width=width_of((tiling.rows, tiling.columns), count, count))
        self.activation = activation
        self.f, self.derivative = reference.ACTIVATIONS[activation]

    def components(self, x: np.ndarray) -> Components:
        return components_of(self.device, x, self.count)

    def forward(self) -> tuple[LayerProduct, np.ndarray]:
        M, N, K = self.sizes
        a, b = (self.rng.standard_normal(shape).astype("f4") for shape in ((M, K), (N, K)))
        bias = self.rng.standard_normal(N).astype("f4")
        product = Product(*(shaped(self.device, *s) for s in ((M, N), (M, K), (N, K))), transpose_b=True)
        epilogue = Epilogue(alpha=0.25, bias=self.device.array(bias), activation=self.activation)
        work = component_product(product, self.components(a), self.components(b), epilogue)
        assert isinstance(work, LayerProduct)
        expected = self.f(0.25 * a.astype("f8") @ b.T.astype("f8") + bias)
        return replace(work, tiling=self.tiling), expected

    def back(self) -> tuple[LayerProduct, np.ndarray]:
        M, N, K = self.sizes
        a, b = (self.rng.standard_normal(shape).astype("f4") for shape in ((M, K), (K, N)))
        made = self.f(self.rng.standard_normal((M, N)).astype("f4"))
        product = Product(*(shaped(self.device, *s) for s in ((M, N), (M, K), (K, N))))
        A, B, C = (self.components(x) for x in (a, b, made))
        epilogue = Epilogue(activation=self.activation)
        work = LayerProduct(product, A, B, epilogue, tiling=self.tiling, made=C)
        return work, (a.astype("f8") @ b.astype("f8")) * self.derivative(made.astype("f8"))

    def left(self, as_float32: bool = True) -> Left:
        M, N, _ = self.sizes
        components = Components.empty(self.device.driver, self.count, M, N)
        self.device.arrays.append(components.array)
        return Left(components, as_float32)


KINDS = few([(3, "sigmoid"), (1, "sigmoid")], of=[*itertools.product([1, 2, 3], ["sigmoid", "tanh", "relu"])])
"""Components, activation: each is a file to compile."""

WAYS = ["forward", "back"]

CUTS = [Tiling(*tile, parts, 2) for tile in ALL_TILES for parts in (1, 3)]


def cases() -> list[tuple[str, Tiling, tuple[int, str]]]:
    """List every tile and kind both ways; the widest, for single components alone, forward."""
    wide = [tiling for tiling in CUTS if tiling.columns > 128]
    other = [tiling for tiling in CUTS if tiling not in wide]
    single = [kind for kind in KINDS if kind[0] == 1]
    of = [*itertools.product(WAYS, other, KINDS), *itertools.product(WAYS, wide, single)]
    some = [(*one, KINDS[0]) for one in spread(WAYS, other, by=2)]
    return few([*some, *itertools.product(WAYS[:1], wide, single)], of=of)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("way", "tiling", "kind"),
    cases(),
    ids=lambda one: f"{one.tile}/{one.parts}" if isinstance(one, Tiling) else str(one),
)
def test_every_cut(device, rng, cores, way, tiling, kind):
    """Float32, components and sums of columns, twice: where blocks meet all is as it was."""
    count, activation = kind
    case = Case(device, rng, count, activation, tiling)
    work, expected = getattr(case, way)()
    sums = None if way == "forward" else device.poisoned(N, "f4")
    work = replace(work, left=case.left(), sums=sums)
    launch, largest = work.on_device(cores), np.abs(expected).max()
    for _ in range(2):
        device.run(launch)
        D = work.product.D.to_host()
        np.testing.assert_allclose(D, expected, rtol=0, atol=TOLERANCE[count] * largest)
        np.testing.assert_array_equal(value_of(work.left.components), of_components(D, count))
        if sums is not None:
            atol = 1e-6 * np.abs(D).sum(axis=0).max()
            np.testing.assert_allclose(sums.to_host(), D.sum(axis=0, dtype="f8"), rtol=0, atol=atol)
        for array in (work.product.D, work.left.components.array, *([sums] if sums is not None else [])):
            array.set(np.full(array.shape, BAD if array.dtype == np.uint16 else np.nan, array.dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["forward", "back"])
def test_as_many_buffers_as_fit(device, rng, cores, way):
    """The host counts all shared memory that the kernels take: a GPU launches nothing that takes more."""
    case = Case(device, rng, 1, "relu", Tiling(64, 64, 1, 2))
    work, expected = getattr(case, way)()
    for tiling in candidates(K, 1, 1, device.driver.shared_memory - work.static_shared, parts=[1]):
        device.run(replace(work, tiling=tiling).on_device(cores))
        atol = TOLERANCE[1] * np.abs(expected).max()
        np.testing.assert_allclose(work.product.D.to_host(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("way", ["forward", "back"])
def test_components_alone(device, rng, cores, way):
    """D itself is not written, and the components are those beside it."""
    case = Case(device, rng, 3, "sigmoid", Tiling(64, 64, 1, 2))
    work, _ = getattr(case, way)()
    both, alone = (replace(work, left=case.left(as_float32)) for as_float32 in (True, False))
    device.run(both.on_device(cores))
    work.product.D.set(np.full((M, N), np.nan, "f4"))
    device.run(alone.on_device(cores))
    assert np.isnan(work.product.D.to_host()).all()
    np.testing.assert_array_equal(value_of(alone.left.components), value_of(both.left.components))
    assert work.product.D not in alone.writes


def test_what_is_not_finite_shows(device, rng, cores):
    """An activation that has become NaN or infinite leaves NaN in its gradient, and in the bias'."""
    case = Case(device, rng, 3, "sigmoid", Tiling(64, 64, 1, 2))
    work, _ = case.back()
    made = value_of(work.made)
    made[3, 4], made[5, 70] = np.nan, np.inf
    sums = device.poisoned(N, "f4")
    device.run(replace(work, made=case.components(made), sums=sums).on_device(cores))
    assert np.isnan(work.product.D.to_host()[3, 4]) and not np.isfinite(work.product.D.to_host()[5, 70])
    assert (
        not np.isfinite(sums.to_host()[[4, 70]]).any()
        and np.isfinite(np.delete(sums.to_host(), [4, 70])).all()
    )


@pytest.mark.parametrize("way", ["forward", "back"])
def test_numpy_does_the_same(rng, way):
    host = Device(CpuDriver(), None)
    case = Case(host, rng, 2, "sigmoid", Tiling(64, 64, 1, 2))
    work, expected = getattr(case, way)()
    sums = None if way == "forward" else host.poisoned(N, "f4")
    work = replace(work, left=case.left(as_float32=False), sums=sums)
    work.in_numpy()()
    left, atol = value_of(work.left.components), TOLERANCE[2] * np.abs(expected).max()
    np.testing.assert_allclose(left, expected, rtol=0, atol=atol)
    if sums is not None:
        np.testing.assert_allclose(sums.to_host(), expected.sum(axis=0), rtol=0, atol=M * atol)


def test_what_does_not_fit(device, rng, cores):
    case = Case(device, rng, 3, "sigmoid", Tiling(64, 64, 1, 2))
    (ahead, _), (back, _) = case.forward(), case.back()
    narrow = Components.empty(device.driver, 3, M, N, packed=True)
    fewer = Components.empty(device.driver, 2, M, N)
    device.arrays += [narrow.array, fewer.array]
    for work, what in (
        (replace(ahead, made=back.made), "forward it is A B"),
        (replace(back, made=None), "forward it is A B"),
        (replace(back, made=fewer), r"made are 2 of 130 x 71, not 3 of \(130, 71\)"),
        (replace(back, left=Left(narrow)), "rows of components hold no whole pairs"),
        (replace(ahead, sums=device.poisoned(N, "f4")), r"sums \(71,\)"),
        (replace(back, sums=device.poisoned(N - 1, "f4")), r"sums \(70,\) of the columns of \(130, 71\)"),
    ):
        with pytest.raises(ValueError, match=what):
            work.on_device(cores)


def test_the_kernel_is_that_of_the_epilogue(device, rng, library, cores):
    case = Case(device, rng, 3, "sigmoid", Tiling(64, 64, 1, 2))
    work, _ = case.forward()
    plain = component_product(work.product, work.A, work.B, Epilogue(bias=work.epilogue.bias))
    assert type(plain) is ComponentProduct
    a, b = (rng.standard_normal(shape).astype("f4") for shape in ((9, 12), (7, 12)))
    D = device.poisoned((9, 7), "f4")
    product = Product(D, device.array(a), device.array(b), transpose_b=True)
    for kernels in (cores, Kernels(library, np.float32, "wgmma", "tf32")):
        launch = bind_split(kernels, product, Epilogue(activation="sigmoid"))
        assert launch.kernels[0] == "split_into_components" and launch.kernels[1].startswith("layer_")
        device.run(launch)
        expected = 1 / (1 + np.exp(-a.astype("f8") @ b.T.astype("f8")))
        np.testing.assert_allclose(D.to_host(), expected, rtol=0, atol=1e-3)


def test_tiles_are_those_that_an_h200_runs_fastest():
    """Take turns where a block has many tiles; on the way back, where epilogues take long, more of them."""
    driver = NullDriver(DeviceProperties("H200", "sm_90a", 132, 227 << 10))

    def work(kind, M, N, K):
        shapes = (M, N), (M, K), ((K, N) if kind == "back" else (N, K))
        product = Product(
            *(DeviceArray.empty(driver, shape, np.float32) for shape in shapes), transpose_b=kind != "back"
        )
        A, B, made = (Components.empty(driver, 1, *shape) for shape in (*shapes[1:], shapes[0]))
        if kind == "plain":
            return ComponentProduct(product, A, B)
        return LayerProduct(
            product, A, B, Epilogue(activation="sigmoid"), made=made if kind == "back" else None
        )

    for kinds, sizes, expected in (
        (("plain", "forward", "back"), (12000, 2048, 784), "ping_pong_128x128"),
        (("plain", "forward", "back"), (3000, 1024, 1024), "192x128"),
        (("plain",), (1024, 4096, 4096), "ping_pong_128x128"),
        (("back",), (1024, 4096, 4096), "128x256"),
    ):
        assert {work(kind, *sizes).cut(driver).tile for kind in kinds} == {expected}
