"""Rules for the products of dense layers from bf16 components (kernels/gemm/layer.cu, gemm/wgmma.cu).

- Bias and activation go into the product before them. So do, on the way back, the gradient through a layer's
  activation, and that of its bias. Such a product leaves components for those that read it next.
- A product that reads nothing of what the operation before it writes need not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nn.launch.column_sums import ColumnSums
from nn.launch.elementwise import ActivationBackward
from nn.launch.gemm.layer import LayerProduct, Left, component_product
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.gemm.versions import THIN
from nn.program.fuse_classifier import LENGTH, FuseClassifier
from nn.program.known_components import KnownComponents, epilogue_of, may_start_early
from nn.program.operations import Item, Operation
from nn.program.rewrite import Replacement, reads, same, writes
from pyrt.arrays import DeviceArray


class DenseRules:
    """The rules for one list."""

    def __init__(self, known: KnownComponents, classifier: FuseClassifier) -> None:
        """Take the rule of the fused classifier: the items that it fuses read float32."""
        self._known, self._kernels, self._classifier = known, known.kernels, classifier

    def product(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Make a product from components, with its bias and activation; split operands where needed."""
        operation = rest[0]
        if not isinstance(operation, Operation) or not self._known.is_product(operation):
            return None
        assert isinstance(operation.work, Product)
        splits, (A, B) = self._known.split(operation, operation.work.reads)
        read = [A.components.numbers, B.components.numbers]
        starts_early = may_start_early(read, [*done, *splits])
        epilogue, count = epilogue_of(operation.work.D, rest[1:2])
        epilogue = replace(epilogue, alpha=A.scale * B.scale)
        work = component_product(operation.work, A.components, B.components, epilogue, starts_early)
        self._known.forget([operation])
        if isinstance(work, LayerProduct):
            work = replace(work, left=self._left(operation.work.D, rest[count:]))
        return Replacement(count, [*splits, replace(operation, work=work, starts_early=starts_early)])

    def way_back(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Make the gradient of a dense layer's sums, and that of its bias, in the product before them."""
        first, *later = rest
        after = self._through(first, later)
        if after is None:
            return None
        assert isinstance(first, Operation) and isinstance(first.work, Product)
        made, D = self._known.find(after.A), first.work.D
        if made is None or made.scale != 1 or made.components.count != self._kernels.components:
            return None
        splits, (A, B) = self._known.split(first, first.work.reads)
        starts_early = may_start_early([A.components.numbers, B.components.numbers], [*done, *splits])
        sums, place = _sums_of(D, later[1:])
        between, behind = later[1 : 1 + place], later[1 + place + (sums is not None) :]
        self._known.forget([first])
        work = LayerProduct(
            first.work,
            A.components,
            B.components,
            Epilogue(alpha=A.scale * B.scale, activation=after.activation),
            starts_early,
            left=self._left(D, [*between, *behind]),
            made=made.components,
            sums=sums,
        )
        result = replace(first, work=work, starts_early=starts_early)
        return Replacement(2 + place + (sums is not None), [*splits, result], between)

    def _through(self, first: Item, later: Sequence[Item]) -> ActivationBackward | None:
        """Return the activation through which a product from components goes on the way back, if any."""
        after = later[0].work if later and isinstance(later[0], Operation) else None
        if not isinstance(after, ActivationBackward) or after.activation == "identity":
            return None
        product = first.work if isinstance(first, Operation) else None
        if not isinstance(product, Product) or product.transpose_a or product.transpose_b:
            return None
        M, N, K = product.sizes
        # However thin it is: what follows reads and writes more than the product does.
        takes_components = self._kernels.gemm_for(M, N, max(K, THIN + 1)) == "wgmma"
        return after if takes_components and same(after.dA, product.D) else None

    def _left(self, D: DeviceArray, later: Sequence[Item]) -> Left:
        """Choose in what form a layer's product leaves D for later items; make room for its components."""
        readers = [place for place, item in enumerate(later) if reads(item, D)]
        classifier = self._in_classifier(later)
        in_classifier = bool(classifier) and self._classifier.reads_components(later[classifier.start :])
        as_components = [
            in_classifier if place in classifier else self._reads_components(D, later, place)
            for place in readers
        ]
        if not any(as_components):
            return Left()
        return Left(self._known.leave(D), not all(as_components))

    def _in_classifier(self, later: Sequence[Item]) -> range:
        """Return the places of the items that the classifier takes."""
        starts = (at for at in range(len(later)) if self._classifier.match(later[at : at + LENGTH]))
        start = next(starts, None)
        return range(0) if start is None else range(start, start + LENGTH)

    def _reads_components(self, D: DeviceArray, later: Sequence[Item], place: int) -> bool:
        """Return whether an item reads D as components: a product, or one that will go through D's f'."""
        if self._known.is_product(later[place]):
            return True
        after = self._through(later[place - 1], later[place:]) if place else None
        return after is not None and same(after.A, D)


def _sums_of(D: DeviceArray, later: Sequence[Item]) -> tuple[DeviceArray | None, int]:
    """Find the sums of D's columns, and the place where they are made; without any: None, 0."""
    for place, item in enumerate(later):
        work = item.work if isinstance(item, Operation) else None
        if isinstance(work, ColumnSums) and same(work.X, D):
            used = any(reads(one, work.sums) or writes(one, work.sums) for one in later[:place])
            return (None, 0) if used else (work.sums, place)
        if writes(item, D):
            break
    return None, 0
