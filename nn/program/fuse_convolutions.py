"""Rules for convolutions that are made from bf16 components (kernels/conv/implicit.cu).

- Bias and activation go into the convolution before them.
- Filters are turned around for the way back by one launch, for all layers.
- The kernel that makes images leaves the components beside them that convolutions read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from nn.launch.conv.convolution import ConvolutionWork, FilterGradient, InputGradient
from nn.launch.conv.flip import FlipFilters, Turn
from nn.launch.conv.gathered import operands_of, result_of
from nn.launch.conv.implicit import ImplicitConvolution
from nn.launch.conv.narrow import bind_narrow
from nn.launch.conv.with_components import WithComponents
from nn.launch.gemm.components import Components, Split
from nn.launch.gemm.product import PLAIN
from nn.launch.pool import Pool
from nn.program.fuse_images import FuseConvolution, FuseOutputGradient
from nn.program.known_components import KnownComponents, epilogue_of, may_start_early
from nn.program.operations import Item, Operation, charged
from nn.program.rewrite import Replacement, reads, same, writes
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch


class ConvolutionRules:
    """The rules for one list."""

    def __init__(self, known: KnownComponents) -> None:
        self._known, self._kernels = known, known.kernels

    def gradient(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Make the gradient of a convolution's sums in one pass, as components if only products read it."""
        rule = FuseOutputGradient(self._image_components_for, self._image_components_of)
        return self._known.apply(rule, rest, done)

    def _image_components_for(self, array: DeviceArray, later: Sequence[Item]) -> Components | None:
        return self._known.leave(array, packed=True) if self._feeds_convolutions_alone(array, later) else None

    def _image_components_of(self, array: DeviceArray, later: Sequence[Item]) -> Components | None:
        return self._known.packed_at(array) if self._feeds_convolutions_alone(array, later) else None

    def _feeds_convolutions_alone(self, array: DeviceArray, later: Sequence[Item]) -> bool:
        return all(self._is_implicit(item) for item in later if reads(item, array))

    def _is_implicit(self, item: Item) -> bool:
        """Return whether this is a convolution that is made from components."""
        work = item.work if isinstance(item, Operation) else None
        return isinstance(work, ConvolutionWork) and self._kernels.choose(work) == "implicit"

    def convolution(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Make a convolution from components, with its bias and activation; split operands where needed."""
        operation = rest[0]
        if not isinstance(operation, Operation) or not self._is_implicit(operation):
            return self._of_arrays(rest, done)
        work = operation.work
        assert isinstance(work, ConvolutionWork)
        items: list[Operation] = []
        images, matrix = operands_of(work)
        of_filters = isinstance(work, FilterGradient)
        gathered = self._image_components(operation, images, items)
        if isinstance(work, InputGradient):
            other = self._turned(operation, rest, items)
        elif of_filters:
            other = self._image_components(operation, matrix, items)
        else:
            splits, (filters,) = self._known.split(operation, (matrix,))
            items += splits
            other = filters.components
        epilogue, count = (PLAIN, 1) if of_filters else epilogue_of(result_of(work), rest[1:2])
        starts_early = may_start_early([gathered.numbers, other.numbers], [*done, *items])
        made = ImplicitConvolution(work, gathered, other, epilogue, starts_early)
        result = replace(operation, work=made, starts_early=starts_early)
        bind = partial(ImplicitConvolution.bind, made)
        return Replacement(count, [*items, self._with_components(result, bind, rest[count:])])

    def _turned(self, reader: Operation, rest: Sequence[Item], items: list[Operation]) -> Components:
        """Return filters turned around; add the launch that turns those of all convolutions that are left."""
        assert isinstance(reader.work, InputGradient)
        filters = reader.work.filters
        found = next((turn for turn in self._known.turns if same(turn.W, filters)), None)
        if found is not None:
            return found.T
        turns: list[Turn] = []
        for place, item in enumerate(rest):
            work = item.work if isinstance(item, Operation) and self._is_implicit(item) else None
            if isinstance(work, InputGradient) and not any(writes(one, work.filters) for one in rest[:place]):
                with charged(self._kernels.driver, item):
                    turns.append(Turn.of(work, self._known.room))
        self._known.turns += turns
        items.append(Operation("turn filters", reader.part, FlipFilters(turns), layer=reader.layer))
        return turns[0].T

    def _of_arrays(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Put bias and activation into a convolution of arrays as they are."""
        found = FuseConvolution(self._kernels)(rest, done)
        if found is None:
            return None
        (result,) = found.items
        assert isinstance(result, Operation)
        work = result.work.convolution
        if work is None or self._kernels.choose(work) != "narrow":
            self._known.forget([result])
            return found
        epilogue, count = epilogue_of(result_of(work), rest[1:2])
        bind = partial(bind_narrow, work=work, epilogue=epilogue)
        return Replacement(count, [self._with_components(result, bind, rest[count:])])

    def pooling(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Let pooling leave components, if a convolution reads them."""
        operation = rest[0]
        if not isinstance(operation, Operation) or not isinstance(operation.work, Pool):
            return None
        bind = partial(Pool.bind, operation.work)
        return Replacement(1, [self._with_components(operation, bind, rest[1:])])

    def _with_components(
        self, maker: Operation, bind: Callable[..., Launch], later: Sequence[Item]
    ) -> Operation:
        """Let the kernel that makes images leave their components too, if a convolution reads these later."""
        self._known.forget([maker])
        images = self._read_as_images(maker.writes[0], later)
        if images is None:
            return maker
        split = Split(((images, self._known.leave(images, packed=True)),))
        return replace(maker, work=WithComponents(maker.work, split, bind, maker.work.kind))

    def _read_as_images(self, array: DeviceArray, later: Sequence[Item]) -> DeviceArray | None:
        """View an array as a later convolution from components reads it, (pixels, channels), if one does."""
        for item in later:
            work = item.work if isinstance(item, Operation) else None
            if isinstance(work, ConvolutionWork) and _touches(work, array) and self._is_implicit(item):
                of_filters = isinstance(work, FilterGradient)
                for operand in operands_of(work)[: 2 if of_filters else 1]:
                    if operand.pointer == array.pointer and operand.size == array.size:
                        return operand
            if writes(item, array):
                return None
        return None

    def _image_components(self, reader: Operation, images: DeviceArray, items: list[Operation]) -> Components:
        """Return the components of images (pixels, channels); add the launch that splits them, if needed."""
        found = self._known.find(images)
        if found is not None and found.components.ld == images.shape[1] and found.scale == 1:
            return found.components
        components = self._known.leave(images, packed=True)
        items.append(
            Operation("split images", reader.part, Split(((images, components),)), layer=reader.layer)
        )
        return components


def _touches(work: ConvolutionWork, array: DeviceArray) -> bool:
    """Return whether its images or its outputs begin where the array does: that is told soonest."""
    return array.pointer in (work.images.pointer, work.outputs.pointer)
