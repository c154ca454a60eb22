"""Tracks which matrices are there as bf16 components at a place of a list; rules for components share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nn.launch.conv.flip import Turn
from nn.launch.elementwise import BiasActivation
from nn.launch.gemm.components import COLUMN_STEP, Components, Split, TakeComponents
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.kernels import Kernels
from nn.program.operations import BucketReady, Item, Operation
from nn.program.rewrite import Replacement, Rule, columns_within, overlap, reads, same, written
from pyrt.arrays import DeviceArray


@dataclass(frozen=True)
class Known:
    """A matrix that is there as components, of which it is ``scale`` times the sum."""

    array: DeviceArray
    components: Components
    scale: float = 1.0

    @property
    def is_packed(self) -> bool:
        """Whether they lie as its own numbers do."""
        return self.scale == 1 and self.array.is_contiguous and self.components.ld == self.array.shape[1]

    def of(self, array: DeviceArray) -> Known | None:
        """Return the components of ``array``, if it is this one or a view of some of its columns."""
        if same(array, self.array):
            return self
        columns = columns_within(array, self.array)
        if columns is None or columns[0] % COLUMN_STEP:
            return None
        return replace(self, array=array, components=self.components.some_columns(*columns))


class KnownComponents:
    """The matrices that are there as components at the present place of a list, and room for more."""

    def __init__(
        self,
        kernels: Kernels,
        take_components: TakeComponents,
        known: Sequence[tuple[DeviceArray, Components]],
    ) -> None:
        self.kernels, self._take_components = kernels, take_components
        self._known = [Known(array, components) for array, components in known]
        self.turns: list[Turn] = []
        """Filters that are there turned around."""

    def room(self, rows: int, columns: int, *, packed: bool = False, count: int | None = None) -> Components:
        """Make room for components of such a matrix: ``count`` of them, else as many as products take."""
        count = self.kernels.components if count is None else count
        return self._take_components(count, rows, columns, packed=packed)

    def leave(self, array: DeviceArray, *, packed: bool = False) -> Components:
        """Make room for the components of a matrix, which are there from here on."""
        components = self.room(*array.shape, packed=packed)
        self.add(array, components)
        return components

    def add(self, array: DeviceArray, components: Components, scale: float = 1.0) -> None:
        """Note that a matrix is there as ``scale`` times the sum of these components."""
        self._known.append(Known(array, components, scale))

    def find(self, array: DeviceArray) -> Known | None:
        """Find the array's components, if there are any."""
        views = (known.of(array) for known in self._known)
        return next((view for view in views if view is not None), None)

    def packed_at(self, array: DeviceArray) -> Components | None:
        """Find packed components of an array that lies where this one does, whatever its shape."""
        there = (known for known in self._known if known.is_packed and known.array.pointer == array.pointer)
        return next((known.components for known in there if known.array.size == array.size), None)

    def forget(self, items: Sequence[Item]) -> None:
        """Forget the components of matrices that these items write over."""
        gone = [array for item in items for array in written(item)]
        self._known = [one for one in self._known if not any(overlap(one.array, array) for array in gone)]
        self.turns = [one for one in self.turns if not any(overlap(one.W, array) for array in gone)]

    def apply(self, rule: Rule, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Apply a rule; forget what its items write over, but not the components that it makes room for."""
        before = len(self._known)
        found = rule(rest, done)
        self._known, new = self._known[:before], self._known[before:]
        if found is not None:
            self.forget(found.items)
            self._known += new
        return found

    def split(
        self, reader: Operation, operands: Sequence[DeviceArray]
    ) -> tuple[list[Operation], list[Known]]:
        """Return operands as components, and the launch that splits those that are not yet split."""
        found = [self.find(array) for array in operands]
        new = {
            place: Known(array, self.room(*array.shape))
            for place, array in enumerate(operands)
            if found[place] is None
        }
        splits = []
        if new:
            work = Split(tuple((one.array, one.components) for one in new.values()))
            splits = [Operation("split operands", reader.part, work, layer=reader.layer)]
            self._known.extend(new.values())
        return splits, [known or new[place] for place, known in enumerate(found)]

    def is_product(self, item: Item) -> bool:
        """Return whether this is a product that is made from components."""
        return (
            isinstance(item, Operation)
            and isinstance(item.work, Product)
            and self.kernels.choose(item.work) == "wgmma"
        )

    def feeds_products_alone(self, X: DeviceArray, later: Sequence[Item]) -> bool:
        """Return whether only products from components read X."""
        return all(self.is_product(item) for item in later if reads(item, X))


def epilogue_of(result: DeviceArray, later: Sequence[Item]) -> tuple[Epilogue, int]:
    """Find the bias and activation behind what makes a matrix, if any; count the items, this one included."""
    work = later[0].work if later and isinstance(later[0], Operation) else None
    if isinstance(work, BiasActivation) and same(work.Z, result):
        return Epilogue(bias=work.b, activation=work.activation), 2
    return Epilogue(), 1


def may_start_early(read: Sequence[DeviceArray], done: Sequence[Item]) -> bool:
    """Return whether work that reads only these arrays may begin beside the last operation that is done.

    What an exchange queues in between writes nothing that the rest of a step reads; a redistribution does.
    """
    before = next((item for item in reversed(done) if not isinstance(item, BucketReady)), None)
    if not isinstance(before, Operation) or before.starts_early:
        return False
    return not any(overlap(array, written) for array in read for written in before.writes)
