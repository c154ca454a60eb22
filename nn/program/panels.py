"""Rule: a weight gradient in several buckets is made by one product a bucket, each a panel of rows.

So the first bucket can leave while the others are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from nn.launch.gemm.product import Product
from nn.program.operations import BucketReady, Item, Operation
from nn.program.rewrite import Replacement


def split_into_panels(rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
    """Match a product D = A' B, then buckets of some of its rows each."""
    first, *later = rest
    if not isinstance(first, Operation) or not isinstance(first.work, Product):
        return None
    buckets = list(takewhile(lambda item: isinstance(item, BucketReady) and item.rows is not None, later))
    if not buckets:
        return None
    items: list[Item] = []
    for bucket in buckets:
        assert isinstance(bucket, BucketReady) and bucket.rows is not None
        items += [replace(first, work=_rows(first.work, *bucket.rows)), bucket]
    return Replacement(1 + len(buckets), items)


def _rows(product: Product, start: int, stop: int) -> Product:
    """Cut a product to rows ``start`` to ``stop`` of D = A' B."""
    return replace(product, D=product.D.rows(start, stop), A=product.A.columns(start, stop))
