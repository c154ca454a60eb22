"""Launches of convolutions from shared memory (kernels/conv/shared.cu): how blocks are cut, and what fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nn.launch.column_sums import ColumnSums
from nn.launch.conv.convolution import ConvolutionWork, FilterGradient, InputGradient
from nn.launch.conv.window import window_arguments
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_EACH = 4  # as conv/shared.cu has it
_MOST_LANES = 8
_MOST_THREADS = 256
_SHARED_BYTES = 48 << 10
"""What every GPU gives a block; a multiprocessor of a large one has room for several such blocks."""
_WHOLE = 8
"""Channels that are copied in whole sectors of memory: a slice of more is a multiple of it."""
_BLOCKS = 1024
"""Of the way to the filters, at least, where there are so many tiles: they fill a large GPU."""


@dataclass(frozen=True)
class SharedTile:
    """How a block is cut: ``rows`` x ``columns`` places of its results, ``channels`` at a time.

    Forward and to the input places are results of the block, and the channels are those that it sums over.
    To the filters it sums over places, and makes the weights of so many channels.
    """

    rows: int
    columns: int
    channels: int
    lanes: int
    groups: int
    shared: int
    """Bytes of shared memory."""

    @property
    def results(self) -> int:
        """Filters that a block takes; to the input: channels."""
        return _EACH * self.lanes

    def count(self, height: int, width: int) -> int:
        """Tiles that cover so many places."""
        return blocks(height, self.rows) * blocks(width, self.columns)


def shared_tile(work: ConvolutionWork) -> SharedTile | None:
    """Choose the tile: the largest one of which some channels fit shared memory; None where none does."""
    results = work.window.channels if isinstance(work, InputGradient) else work.filter_count
    lanes = min(_MOST_LANES, 1 << (blocks(results, _EACH) - 1).bit_length())
    most = _MOST_THREADS // lanes * _EACH
    cut = _filters_tile if isinstance(work, FilterGradient) else _tile
    while most:
        tile = cut(work, lanes, most)
        if tile.channels and tile.shared <= _SHARED_BYTES:
            return tile
        most //= 2
    return None


def shared_fits(work: ConvolutionWork) -> bool:
    """Return whether the kernels can take it: a window may be too large for shared memory."""
    return shared_tile(work) is not None


def _tile(work: ConvolutionWork, lanes: int, most: int) -> SharedTile:
    """Cut a block of at most so many places, forward or to the input: of 0 channels where none fits."""
    window, size = work.window, work.images.dtype.itemsize
    depth, step, taps = window.channels, window.stride, (window.rows, window.columns)
    if isinstance(work, InputGradient):
        # Of each phase of the pixels: see shared_input.
        depth, step, taps = work.filter_count, 1, (blocks(taps[0], step), blocks(taps[1], step))
    rows, columns = _places(*_result_places(work), most)
    patch = ((rows - 1) * step + taps[0]) * ((columns - 1) * step + taps[1])
    weights = taps[0] * taps[1] * (_EACH * lanes + 1)
    channels = max(0, _SHARED_BYTES // size - patch) // (patch + weights)  # a pixel may have one number more
    channels = min(depth, channels if channels < _WHOLE else channels // _WHOLE * _WHOLE)
    shared = (patch * (channels | 1) + weights * channels) * size
    return SharedTile(rows, columns, channels, lanes, blocks(rows * columns, _EACH), shared)


def _filters_tile(work: ConvolutionWork, lanes: int, most: int) -> SharedTile:
    """Cut a block of at most so many places to sum over, and as many weights as it has threads for."""
    window, size = work.window, work.images.dtype.itemsize
    weights, taps = _MOST_THREADS // lanes * _EACH, window.rows * window.columns
    channels = _part(window.channels, max(1, weights // taps))
    groups = blocks(min(weights, taps * channels), _EACH)
    rows, columns = _places(window.out_height, window.out_width, most)
    patch = ((rows - 1) * window.stride + window.rows) * ((columns - 1) * window.stride + window.columns)
    shared = (patch * (channels | 1) + rows * columns * (_EACH * lanes + 1)) * size
    return SharedTile(rows, columns, channels, lanes, groups, shared)


def _result_places(work: ConvolutionWork) -> tuple[int, int]:
    """Rows and columns of places that a block's tile is cut from: outputs, or the pixels of a phase."""
    window = work.window
    if isinstance(work, InputGradient):
        return blocks(window.height, window.stride), blocks(window.width, window.stride)
    return window.out_height, window.out_width


def _places(height: int, width: int, most: int) -> tuple[int, int]:
    """Cut an image into equal tiles of at most ``most`` places (a power of two), nearly square."""
    columns = _part(width, 1 << most.bit_length() // 2)
    return _part(height, max(1, most // columns)), columns


def _part(size: int, most: int) -> int:
    """The size of as few equal parts as there can be, none larger than ``most``."""
    return blocks(size, blocks(size, most))


def bind_shared(kernels: Kernels, work: ConvolutionWork) -> Launch:
    """Bind one launch for all samples; to the filters, a second one adds up what blocks have summed.

    Raises ValueError where a window is too large: `shared_fits`.
    """
    tile = shared_tile(work)
    if tile is None:
        raise ValueError(f"convolution: {work.window} is too large for shared memory")
    if isinstance(work, FilterGradient):
        return _bind_filters(kernels, work, tile)
    window, name, results, result = work.window, "shared_forward", work.filter_count, work.outputs
    phases = 1
    if isinstance(work, InputGradient):
        name, results, result = "shared_input", window.channels, work.images
        phases = min(window.stride, window.height) * min(window.stride, window.width)
    grid = (work.samples * phases * tile.count(*_result_places(work)) * blocks(results, tile.results),)
    return kernels.kernel("conv/shared", name).bind(
        grid,
        (tile.lanes, tile.groups),
        *window_arguments(work.samples, window),
        work.filter_count,
        *work.reads,
        result,
        *(tile.rows, tile.columns, tile.channels),
        shared=tile.shared,
    )


def _bind_filters(kernels: Kernels, work: FilterGradient, tile: SharedTile) -> Launch:
    window, weights = work.window, work.filters.size
    parts = blocks(window.rows * window.columns * tile.channels, _EACH * tile.groups)
    each = parts * blocks(window.channels, tile.channels) * blocks(work.filter_count, tile.results)
    tiles = work.samples * tile.count(window.out_height, window.out_width)
    chunks = min(tiles, blocks(_BLOCKS, each))
    partials = work.filters.reshape(1, weights)
    if chunks > 1:
        partials = DeviceArray.empty(kernels.driver, (chunks, weights), work.filters.dtype)
    launch = kernels.kernel("conv/shared", "shared_filters").bind(
        (chunks * each,),
        (tile.lanes, tile.groups),
        *window_arguments(work.samples, window),
        work.filter_count,
        *work.reads,
        partials,
        *(tile.rows, tile.columns, tile.channels, chunks),
        shared=tile.shared,
    )
    if chunks == 1:
        return launch
    return in_order([launch, ColumnSums(partials, work.filters.reshape(weights)).on_device(kernels)])
