"""Launch shapes and the checks of shapes; needs no GPU."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nn.input.source import BatchCursor, Gathered, Ready
from nn.launch.classifier import (
    FusedClassifier,
    fused_classifier_fits,
    fused_classifier_partials,
    fused_classifier_shape,
)
from nn.launch.column_sums import ColumnSums, column_sums_shape
from nn.launch.conv.convolution import Convolution, FilterGradient, InputGradient
from nn.launch.conv.versions import CONV_VERSIONS, runs_convolution
from nn.launch.elementwise import activation_backward, bias_activation
from nn.launch.gemm import gemm
from nn.launch.gemm.components import Components
from nn.launch.gemm.ladder import ladder_shape
from nn.launch.gemm.product import PLAIN, Epilogue, Product
from nn.launch.gemm.versions import PLAIN_GEMM_VERSIONS
from nn.launch.head import Head, head_shape
from nn.launch.kernels import Kernels
from nn.launch.pixels import GatherBatch, ScalePixels
from nn.launch.pool import Pool
from nn.launch.shapes import line_shape, plane_shape
from nn.launch.update import EndStep, LossRing, Segment, Update, UpdateArrays
from nn.model.net_text import make_network
from nn.model.network import Network
from nn.model.window import Window
from nn.optimisers import Adam, Sgd
from nn.parallel.shard import Shard
from nn.program.operations import Operation, skip_batch
from nn.program.rank_model import Numbers, RankModel, TrainingArrays
from pyrt.arrays import DeviceArray
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.exchange import Bucket, NoUpdate, device, nothing
from pyrt.exchange.peer import Peers, bind_shard_sums, bind_update, shares
from pyrt.kernels import KERNELS, KernelLibrary, all_constants, architectures
from pyrt.redistribute import packing
from pyrt.redistribute import peer as redistribute_peer
from tests import few

SIZES = [0, 1, 2, 7, 8, 9, 31, 32, 33, 64, 65, 1000, 60000]


def array(*shape, ld=None, dtype=np.float32):
    """An array that is never read."""
    return DeviceArray(None, 0, shape, np.dtype(dtype), ld or shape[-1])


def cursor(size, driver=None):
    """Of a batch."""
    return BatchCursor(DeviceArray(driver, 0, (size,), np.dtype(np.int32), size), 1, 9)


@pytest.mark.parametrize("version", PLAIN_GEMM_VERSIONS)
def test_ladder_shape_covers_the_result(version):
    tile = {"naive": (8, 32), "shared": (32, 32), "register": (16, 64)}.get(version, (64, 64))
    threads = {"naive": 256, "shared": 1024, "register": 64}.get(version, 128)
    for M, N in itertools.product(SIZES, SIZES):
        grid, block = ladder_shape(version, M, N)
        for blocks, size, side in zip(grid, (M, N), tile, strict=True):
            assert blocks >= 1 and (blocks - 1) * side < max(size, 1) and blocks * side >= size
        assert np.prod(block) == threads


def test_other_shapes_are_valid_launches():
    for rows, columns in itertools.product([*SIZES, 2**31 - 1], repeat=2):
        for grid, block in (plane_shape(rows, columns), line_shape(rows), head_shape(rows)):
            assert all(blocks >= 1 for blocks in grid) and np.prod(block) <= 1024
            assert grid[0] < 2**31 and (len(grid) == 1 or grid[1] < 2**16)


@pytest.mark.parametrize(
    "columns, width, blocks", [(0, 1, 1), (1, 1, 1), (2, 2, 1), (3, 4, 1), (8, 8, 1), (9, 8, 2), (512, 8, 64)]
)
def test_column_sums_shape(columns, width, blocks):
    assert column_sums_shape(columns) == ((blocks,), (width, 512 // width))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fused_classifier_shapes(dtype):
    """All rows are taken, in chunks as equal as they can be; what fits for one batch fits for all."""
    for rows, hidden, classes, most in itertools.product(
        [1, 2, 7, 131, 3000, 60000], [1, 5, 130, 512, 1000], [1, 2, 10, 11, 32], [1, 2, 132]
    ):
        blocks, width = fused_classifier_partials(rows, hidden, classes, dtype, most)
        assert 1 <= blocks <= min(rows, most) and width >= (classes + 1) * (hidden + 1) and width % 32 == 0
        shape = fused_classifier_shape(rows, hidden, classes, dtype, blocks)
        share = -(-rows // blocks)
        assert 1 <= shape.rows <= min(share, shape.threads) and shape.threads % 32 == 0
        assert share % shape.rows == 0 or shape.rows - share % shape.rows <= share // shape.rows
        assert classes <= shape.classes and 0 <= shape.halvings <= 2
        if fused_classifier_fits(hidden, classes, dtype, 48 << 10):
            assert shape.shared <= 48 << 10


def test_fused_classifier_at_the_reference_work():
    """784-512-10 on 132 multiprocessors: 23 rows or 6 in a block, two or four warps a group of 3 rows."""
    for rows, chunk, halvings in ((3000, 23, 1), (750, 6, 2)):
        assert fused_classifier_partials(rows, 512, 10, np.float32, 132) == (132, 5664)
        shape = fused_classifier_shape(rows, 512, 10, np.float32, 132)
        assert (shape.classes, shape.threads, shape.rows, shape.halvings) == (10, 512, chunk, halvings)


def test_fused_classifier_refuses():
    small, large = 48 << 10, 227 << 10
    assert fused_classifier_fits(512, 10, np.float32, small) and fused_classifier_fits(
        1000, 10, np.float32, small
    )
    assert not fused_classifier_fits(4000, 10, np.float32, small) and fused_classifier_fits(
        4000, 10, np.float32, large
    )
    assert not fused_classifier_fits(8, 33, np.float32, large)


ACTIVATIONS = ["sigmoid", "tanh", "relu"]


@pytest.mark.parametrize("optimiser", [Sgd(), Adam()])
@pytest.mark.parametrize("activation", few(["relu"], of=ACTIVATIONS))
@pytest.mark.parametrize("pixel", [np.uint8, np.float32])
@pytest.mark.parametrize(
    "gemm, dtype",
    [("tiled", np.float32), ("tiled", np.float64), ("mma", np.float32), ("wgmma", np.float32)],
)
def test_what_a_step_loads_is_declared(dtype, activation, pixel, gemm, optimiser):
    """So `make kernels` compiles it. A fused output layer, and one that is too wide for that."""
    for classes in (12, 40):
        kernels = on_null(dtype, gemm)
        driver = kernels.driver
        network = Network.dense((784, 512, 70, classes), activation, "sigmoid")
        model = RankModel(driver, Shard.alone(network), Numbers(np.dtype(dtype).name, kernels), 100)
        training = TrainingArrays(model, optimiser, ("local", "local"))
        loss = training.gradients["loss"]
        update = training.update(LossRing(loss, array_of(driver, 9, loss.dtype), array_of(driver, 1, "i4")))
        ready = Ready(array_of(driver, (100, 784), pixel), array_of(driver, 100, "i4"))
        gathered = Gathered(
            *vars(ready).values(), array_of(driver, 100, "i4"), cursor(2, driver), ready.labels
        )
        lists = [
            model.forward(ready, 100)[0],
            training.step(gathered, 100),
            update.operations(*(panel.bucket for panel in training.panels), ends_step=True),
            [skip_batch(gathered.cursor)],
        ]
        for operation in (item for items in lists for item in items if isinstance(item, Operation)):
            operation.on_device(kernels)
        assert_declared(kernels, least=6)


@pytest.mark.parametrize("gemm, dtype", [("tiled", np.float64), ("mma", np.float32), ("wgmma", np.float32)])
@pytest.mark.parametrize("conv", CONV_VERSIONS)
@pytest.mark.parametrize("activation", few(["tanh"], of=ACTIVATIONS))
def test_what_a_step_of_convolutions_loads_is_declared(activation, conv, gemm, dtype):
    """Of few channels and of many, with pools of both kinds."""
    if not runs_convolution(conv, dtype, "sm_90a"):
        return
    kernels = on_null(dtype, gemm, conv=conv)
    driver, words = kernels.driver, "conv3x3x16p1,{0},pool2,conv3x3x32s2,{0},avgpool2,conv2x2x5,{0},dense3"
    network = make_network(words.format(activation), (28, 28, 3), 3, "softmax")
    model = RankModel(driver, Shard.alone(network), Numbers(np.dtype(dtype).name, kernels), 10)
    training = TrainingArrays(model, Sgd(), ("local", "local"))
    ready = Ready(array_of(driver, (10, 28 * 28 * 3), np.uint8), array_of(driver, 10, "i4"))
    items = [*model.forward(ready, 10)[0], *training.step(ready, 10)]
    for operation in (item for item in items if isinstance(item, Operation)):
        operation.on_device(kernels)
    assert_declared(kernels, least=6)


@pytest.mark.parametrize("optimiser", [Sgd(), Adam(), None])
@pytest.mark.parametrize("group", [2, 3, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_exchanges_over_peer_memory_load_is_declared(dtype, group, optimiser):
    kernels = on_null(dtype, "tiled")
    driver, size = kernels.driver, 64
    flat = [array_of(driver, size, dtype) for _ in range(2)]
    update = NoUpdate()
    if optimiser is not None:
        states = {name: array_of(driver, size, dtype) for name in optimiser.states}
        clock = array_of(driver, optimiser.clock, "f8")
        arrays = UpdateArrays(optimiser, *flat, states, clock)
        update = SimpleNamespace(
            for_peers=lambda driver, buckets: arrays.for_peers(
                kernels, [Segment(*b, 0) for b in buckets], None
            ),
            bind_end=lambda: nothing,
        )
    slots = array_of(driver, 2, "i4")
    mine = shares([Bucket(0, size)], group)
    peers = Peers(flat[1], 0, group, mine, "comm/peer", [flat[:1] * group], slots, 0, 32)
    for name in ("sum_update_spread", "update_spread"):
        bind_update(name, peers, update)
    bind_shard_sums(peers, update)
    flags = replace(peers, file="comm/peer_flags", memory=[flat[:1] * group] * 3)
    bind_update("sum_update_spread", flags, update)
    assert_declared(kernels, least=2)


@pytest.mark.parametrize("group", [2, 3, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_moves_matrices_is_declared(dtype, group):
    dtype, kernels = np.dtype(dtype), on_null(dtype, "tiled")
    for file, constants in (
        packing.kernel_file(dtype),
        redistribute_peer.kernel_file(dtype, group),
        device.kernel_file(dtype),
    ):
        assert declares(file, constants), file
        kernels.library.source(file, constants)


def on_null(dtype, gemm, architecture="sm_90a", conv="auto"):
    """Kernels on a device that is not there."""
    driver = NullDriver(DeviceProperties("null", architecture, 132, 227 << 10))
    return Kernels(KernelLibrary(driver), dtype, gemm, conv=conv)


def array_of(driver, shape, dtype):
    return DeviceArray.empty(driver, (shape,) if isinstance(shape, int) else shape, dtype)


def assert_declared(kernels, least):
    """Each source that was loaded is a file under constants that it declares; so many files or more."""
    files = set()
    for source in kernels.driver.sources:
        given = dict(re.findall(r"^#define (\w+) (\S+)$", source.split("#line", 1)[0], re.MULTILINE))
        file = re.search(r'^#line 1 "(.*)\.cu"$', source, re.MULTILINE)[1]
        assert declares(Path(file).relative_to(KERNELS), given), (file, given)
        assert "sm_90a" in (architectures(source) or ["sm_90a"])
        files.add(file)
    assert len(files) >= least


def declares(file, constants):
    declared = all_constants((KERNELS / f"{file}.cu").read_text())
    return {name: str(value) for name, value in constants.items()} in declared


def test_unknown_versions():
    with pytest.raises(ValueError, match="wgmma, not 'fast'"):
        on_null(np.float32, "fast")
    with pytest.raises(ValueError, match=r"^conv is auto, direct, .*, not 'fast'"):
        on_null(np.float32, "tiled", conv="fast")


def product(*shapes, epilogue=PLAIN, **transposed):
    return lambda kernels: gemm(
        kernels, Product(*(array(*shape) for shape in shapes), **transposed), epilogue
    )


def fused_classifier(classes=3, partials=None, **changed):
    """A launch for 2 x 5 activations, but for what is changed."""
    arrays = {
        "A": array(2, 5),
        "W": array(classes, 5),
        "b": array(classes),
        "labels": array(2, dtype=np.int32),
        "dZ": array(2, 5),
        "dW": array(classes, 5),
        "db": array(classes),
        "db_hidden": array(5),
        "loss_sum": array(1),
    }
    end = FusedClassifier("softmax", "tanh", **{**arrays, **changed}, scale=1.0)
    return lambda kernels: end.bind_gradient(kernels, partials or array(1, 64 if classes == 3 else 320))


def components(count, rows, columns):
    """So many of a matrix."""
    ld = -(-columns // 64) * 64
    return Components(array(count * rows * ld, dtype=np.uint16), count, rows, columns, ld, rows * ld)


def update(size, gradients, state, *segments):
    """Of so many parameters."""
    arrays = UpdateArrays(Sgd(), array(size), array(gradients), {"v": array(state)}, None)
    return Update(arrays, segments).on_device


def gather(images, labels, state, rows, columns, batch_labels):
    work = GatherBatch(
        array(*images),
        array(labels),
        array(9),
        cursor(state),
        array(rows, columns),
        array(batch_labels),
        255.0,
    )
    return work.on_device


WINDOW = Window.over("conv", (5, 6, 2), (3, 2), 1, 0)
"""3 x 5 places, of 12 pixels."""


def convolution(kind, images=(4, 60), outputs=(4, 45), filters=(3, 12)):
    return kind(array(*images), array(*outputs), array(*filters), WINDOW).on_device


def pooling(images=(4, 60), outputs=(4, 30)):
    return Pool(array(*images), array(*outputs), None, WINDOW).on_device


def keep_loss(loss, place):
    ring = LossRing(array(loss), array(9), array(place))
    return EndStep(UpdateArrays(Sgd(), array(1), array(1), {"v": array(1)}, None), ring).on_device


@pytest.mark.parametrize(
    "call",
    [
        product((2, 3), (2, 4), (5, 3)),
        product((2, 3), (2, 4), (4, 3), transpose_a=True),
        product((3, 2), (2, 4), (4, 3)),
        product((2, 3), (2, 4), (4, 3), epilogue=Epilogue(C=array(3, 2))),
        lambda k: bias_activation(k, array(2, 3), array(2), array(2, 3), "tanh"),
        lambda k: bias_activation(k, array(2, 3), array(3), array(3, 2), "tanh"),
        lambda k: bias_activation(k, array(2, 3, ld=4), array(3), array(2, 3), "tanh"),
        lambda k: activation_backward(k, array(2, 3), array(2, 3), array(2, 4), "tanh"),
        Head("softmax", array(2, 3), array(2), array(2), array(2), 1.0).on_device,
        Head("softmax", array(2, 3), array(3), array(3), array(2), 1.0).on_device,
        Head("softmax", array(2, 3), array(3), array(2), array(3), 1.0).on_device,
        Head("softmax", array(2, 3, ld=4), array(3), array(2), array(2), 1.0).on_device,
        fused_classifier(W=array(3, 4)),
        fused_classifier(A=array(2, 5, ld=8)),
        fused_classifier(labels=array(3)),
        fused_classifier(dW=array(5, 3)),
        fused_classifier(db_hidden=array(3)),
        fused_classifier(loss_sum=array(2)),
        fused_classifier(partials=array(1, 32)),
        fused_classifier(dZ=array(2, 6)),
        fused_classifier(components=components(1, 2, 4)),
        fused_classifier(components=components(1, 3, 5)),
        fused_classifier(components=components(4, 2, 5)),
        fused_classifier(classes=33),
        ColumnSums(array(2, 3), array(2)).on_device,
        ColumnSums(array(6), array(6)).on_device,
        update(6, 5, 6, Segment(0, 5, 0)),
        update(6, 6, 5, Segment(0, 6, 0)),
        update(6, 6, 6, Segment(0, 3, 0), Segment(4, 3, 0)),
        ScalePixels(array(2, 3), array(3, 3), 255.0).on_device,
        ScalePixels(array(4, 4), array(3, 3), 255.0).on_device,
        gather((4, 2), 4, 2, 3, 3, 3),
        gather((4, 3), 4, 2, 3, 3, 4),
        gather((4, 3), 4, 1, 3, 3, 3),
        gather((4, 3), 5, 2, 3, 3, 3),
        keep_loss(2, 1),
        keep_loss(1, 2),
        *(
            convolution(kind, **{name: shape})
            for kind in (Convolution, InputGradient, FilterGradient)
            for name, shape in (("images", (4, 61)), ("outputs", (3, 45)), ("filters", (3, 11)))
        ),
        convolution(Convolution, outputs=(60, 3)),
        pooling(images=(4, 61)),
        pooling(outputs=(3, 30)),
    ],
)
def test_shapes_that_do_not_fit(call):
    with pytest.raises(ValueError, match=r"\(\d+,"):
        call(on_null(np.float32, "tiled"))


def test_components_are_of_float32():
    end = fused_classifier(components=components(1, 2, 5))
    with pytest.raises(ValueError, match="float32 only"):
        end(on_null(np.float64, "tiled"))
    end(on_null(np.float32, "tiled"))


def test_a_plain_version_has_no_bias_and_no_activation():
    for epilogue in (Epilogue(bias=array(4)), Epilogue(activation="tanh")):
        with pytest.raises(ValueError, match="tiled adds no bias and has no activation"):
            product((2, 4), (2, 3), (3, 4), epilogue=epilogue)(on_null(np.float32, "tiled"))
