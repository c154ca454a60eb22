"""Rules for tensor cores that multiply bf16 components (kernels/gemm/wgmma.cu).

- Each matrix is split once, before the first product that reads it. Pixels are gathered as a component, and
  the update keeps the components of weights.
- Bias and activation go into the product before them.
- Filters are turned around for the way back by one launch, for all layers.
- The kernel that makes images leaves the components beside them that convolutions read.
- A product that reads nothing of what the operation before it writes need not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nn.launch.conv.convolution import ConvolutionWork, FilterGradient, InputGradient
from nn.launch.conv.flip import FlipFilters, Turn
from nn.launch.conv.gathered import operands_of, result_of
from nn.launch.conv.implicit import ImplicitConvolution
from nn.launch.conv.narrow import bind_narrow
from nn.launch.conv.with_components import WithComponents
from nn.launch.elementwise import BiasActivation
from nn.launch.gemm.components import COLUMN_STEP, Components, Split, TakeComponents
from nn.launch.gemm.product import PLAIN, Epilogue, Product
from nn.launch.gemm.wgmma import ComponentProduct
from nn.launch.kernels import Kernels
from nn.launch.pixels import GatherBatch, ScalePixels
from nn.launch.pool import Pool
from nn.program.fuse_classifier import FuseClassifier
from nn.program.fuse_images import FuseConvolution, FuseOutputGradient
from nn.program.operations import BucketReady, Item, Operation, charged
from nn.program.rewrite import Replacement, Rule, columns_within, overlap, reads, same, writes, written
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch


@dataclass(frozen=True)
class _Known:
    """A matrix that is there as components, of which it is ``scale`` times the sum."""

    array: DeviceArray
    components: Components
    scale: float = 1.0

    @property
    def is_packed(self) -> bool:
        """Whether they lie as its own numbers do."""
        return self.scale == 1 and self.array.is_contiguous and self.components.ld == self.array.shape[1]

    def of(self, array: DeviceArray) -> _Known | None:
        """Return the components of ``array``, if it is this one or a view of some of its columns."""
        if same(array, self.array):
            return self
        columns = columns_within(array, self.array)
        if columns is None or columns[0] % COLUMN_STEP:
            return None
        return replace(self, array=array, components=self.components.some_columns(*columns))


class ComponentRules:
    """The rules for one list, and which matrices are there as components at its present place."""

    def __init__(
        self,
        kernels: Kernels,
        take_components: TakeComponents,
        known: Sequence[tuple[DeviceArray, Components]],
    ) -> None:
        self._kernels, self._take_components = kernels, take_components
        self._known = [_Known(array, components) for array, components in known]
        self._turns: list[Turn] = []
        self._classifier = FuseClassifier(kernels, self._components_for_products)

    @property
    def rules(self) -> list[Rule]:
        """In the order in which they are tried."""
        return [
            self.classifier,
            self.pixels,
            self.gradient,
            self.product,
            self.convolution,
            self.pooling,
            self.other,
        ]

    def classifier(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Make the end of the network one kernel; dZ is components if only products from these read it."""
        known = len(self._known)
        found = self._classifier(rest, done)
        if found is None:
            return None
        new = self._known[known:]  # of dZ, which the kernel writes as components
        self._known = self._known[:known]
        self._forget(found.items)
        self._known += new
        return found

    def _components_for_products(self, array: DeviceArray, later: Sequence[Item]) -> Components | None:
        if not self._feeds_products_alone(array, later):
            return None
        components = self._take_components(self._kernels.components, *array.shape)
        self._known.append(_Known(array, components))
        return components

    def gradient(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Make the gradient of a convolution's sums in one pass, as components if only products read it."""
        known = len(self._known)
        found = FuseOutputGradient(self._image_components_for, self._image_components_of)(rest, done)
        if found is None:
            return None
        new = self._known[known:]
        self._known = self._known[:known]
        self._forget(found.items)
        self._known += new
        return found

    def _image_components_for(self, array: DeviceArray, later: Sequence[Item]) -> Components | None:
        if not all(self._is_implicit(item) for item in later if reads(item, array)):
            return None
        components = self._take_components(self._kernels.components, *array.shape, packed=True)
        self._known.append(_Known(array, components))
        return components

    def _image_components_of(self, array: DeviceArray, later: Sequence[Item]) -> Components | None:
        if not all(self._is_implicit(item) for item in later if reads(item, array)):
            return None
        there = (known for known in self._known if known.is_packed and known.array.pointer == array.pointer)
        return next((known.components for known in there if known.array.size == array.size), None)

    def _is_implicit(self, item: Item) -> bool:
        """Return whether this is a convolution that is made from components."""
        work = item.work if isinstance(item, Operation) else None
        return isinstance(work, ConvolutionWork) and self._kernels.choose(work) == "implicit"

    def pixels(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Pixels that bf16 holds, as they are, where only products read them: these scale their results."""
        operation, *later = rest
        work = operation.work if isinstance(operation, Operation) else None
        if not isinstance(operation, Operation) or not isinstance(work, ScalePixels | GatherBatch):
            return None
        if not work.is_exact or not self._feeds_products_alone(work.X, later):
            return None
        components = self._take_components(1, *work.X.shape)
        self._forget([operation])
        self._known.append(_Known(work.X, components, 1 / work.scale))
        return Replacement(1, [replace(operation, work=replace(work, components=components))])

    def product(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Make a product from components, with its bias and activation; split operands where needed."""
        operation = rest[0]
        if not isinstance(operation, Operation) or not self._takes_components(operation):
            return None
        assert isinstance(operation.work, Product)
        splits, (A, B) = self._split(operation, operation.work.reads)
        read = [A.components.numbers, B.components.numbers]
        starts_early = _may_start_early(read, [*done, *splits])
        epilogue, count = _epilogue(operation.work.D, rest[1:2])
        epilogue = replace(epilogue, alpha=A.scale * B.scale)
        work = ComponentProduct(operation.work, A.components, B.components, epilogue, starts_early)
        result = replace(operation, work=work, starts_early=starts_early)
        self._forget([result])
        return Replacement(count, [*splits, result])

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
            splits, (filters,) = self._split(operation, (matrix,))
            items += splits
            other = filters.components
        epilogue, count = (PLAIN, 1) if of_filters else _epilogue(result_of(work), rest[1:2])
        starts_early = _may_start_early([gathered.numbers, other.numbers], [*done, *items])
        made = ImplicitConvolution(work, gathered, other, epilogue, starts_early)
        result = replace(operation, work=made, starts_early=starts_early)
        bind = partial(ImplicitConvolution.bind, made)
        return Replacement(count, [*items, self._with_components(result, bind, rest[count:])])

    def _turned(self, reader: Operation, rest: Sequence[Item], items: list[Operation]) -> Components:
        """Return filters turned around; add the launch that turns those of all convolutions that are left."""
        assert isinstance(reader.work, InputGradient)
        filters = reader.work.filters
        found = next((turn for turn in self._turns if same(turn.W, filters)), None)
        if found is not None:
            return found.T
        turns: list[Turn] = []
        for place, item in enumerate(rest):
            work = item.work if isinstance(item, Operation) and self._is_implicit(item) else None
            if isinstance(work, InputGradient) and not any(writes(one, work.filters) for one in rest[:place]):
                with charged(self._kernels.driver, item):
                    turns.append(Turn.of(work, partial(self._take_components, self._kernels.components)))
        self._turns += turns
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
            self._forget([result])
            return found
        epilogue, count = _epilogue(result_of(work), rest[1:2])
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
        self._forget([maker])
        images = self._read_as_images(maker.writes[0], later)
        if images is None:
            return maker
        components = self._take_components(self._kernels.components, *images.shape, packed=True)
        self._known.append(_Known(images, components))
        split = Split(((images, components),))
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
        found = self._find(images)
        if found is not None and found.components.ld == images.shape[1] and found.scale == 1:
            return found.components
        components = self._take_components(self._kernels.components, *images.shape, packed=True)
        items.append(
            Operation("split images", reader.part, Split(((images, components),)), layer=reader.layer)
        )
        self._known.append(_Known(images, components))
        return components

    def other(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Leave any other item as it is; forget the components of what it writes."""
        self._forget(rest[:1])
        return None

    def _takes_components(self, item: Item) -> bool:
        """Return whether this is a product that is made from components."""
        return (
            isinstance(item, Operation)
            and isinstance(item.work, Product)
            and self._kernels.choose(item.work) == "wgmma"
        )

    def _feeds_products_alone(self, X: DeviceArray, later: Sequence[Item]) -> bool:
        """Return whether only products from components read X."""
        return all(self._takes_components(item) for item in later if reads(item, X))

    def _forget(self, items: Sequence[Item]) -> None:
        """Components of matrices that these items write over."""
        gone = [array for item in items for array in written(item)]
        self._known = [one for one in self._known if not any(overlap(one.array, array) for array in gone)]
        self._turns = [one for one in self._turns if not any(overlap(one.W, array) for array in gone)]

    def _split(
        self, reader: Operation, operands: Sequence[DeviceArray]
    ) -> tuple[list[Operation], list[_Known]]:
        """Return operands as components, and the launch that splits those that are not yet split."""
        found = [self._find(array) for array in operands]
        new = {
            place: _Known(array, self._take_components(self._kernels.components, *array.shape))
            for place, array in enumerate(operands)
            if found[place] is None
        }
        splits = []
        if new:
            work = Split(tuple((one.array, one.components) for one in new.values()))
            splits = [Operation("split operands", reader.part, work, layer=reader.layer)]
            self._known.extend(new.values())
        return splits, [known or new[place] for place, known in enumerate(found)]

    def _find(self, array: DeviceArray) -> _Known | None:
        """Find the array's components, if there are any."""
        views = (known.of(array) for known in self._known)
        return next((view for view in views if view is not None), None)


def _touches(work: ConvolutionWork, array: DeviceArray) -> bool:
    """Return whether its images or its outputs begin where the array does: that is told soonest."""
    return array.pointer in (work.images.pointer, work.outputs.pointer)


def _epilogue(result: DeviceArray, later: Sequence[Item]) -> tuple[Epilogue, int]:
    """Find the bias and activation behind what makes a matrix, if any; count the items, this one included."""
    work = later[0].work if later and isinstance(later[0], Operation) else None
    if isinstance(work, BiasActivation) and same(work.Z, result):
        return Epilogue(bias=work.b, activation=work.activation), 2
    return Epilogue(), 1


def _may_start_early(read: Sequence[DeviceArray], done: Sequence[Item]) -> bool:
    """Return whether work that reads only these arrays may begin beside the last operation that is done.

    What an exchange queues in between writes nothing that the rest of a step reads; a redistribution does.
    """
    before = next((item for item in reversed(done) if not isinstance(item, BucketReady)), None)
    if not isinstance(before, Operation) or before.starts_early:
        return False
    return not any(overlap(array, written) for array in read for written in before.writes)
