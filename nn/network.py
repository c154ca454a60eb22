"""What a network is: layer sizes, the hidden layers' activation, the head. No arrays."""

from __future__ import annotations

from dataclasses import dataclass

from pyrt.errors import UserError

ACTIVATIONS = ("sigmoid", "tanh", "relu")
HEADS = ("softmax", "sigmoid")

LARGEST = 2**31 - 1
"""Elements that a 32-bit index of a kernel reaches."""


@dataclass(frozen=True)
class Network:
    """A fully connected network; ``sizes`` = (inputs, hidden..., classes)."""

    sizes: tuple[int, ...]
    activation: str
    head: str

    def __post_init__(self) -> None:
        for layer in self.layers:
            if self.sizes[layer] * self.sizes[layer - 1] > LARGEST:
                raise UserError(
                    f"layer {layer} would have {self.sizes[layer]} x {self.sizes[layer - 1]} weights, more "
                    "than 2^31: use smaller --hidden layers"
                )

    @property
    def layers(self) -> range:
        """Layer numbers 1..L."""
        return range(1, len(self.sizes))

    @property
    def depth(self) -> int:
        """L, the number of layers with weights."""
        return len(self.sizes) - 1

    @property
    def classes(self) -> int:
        return self.sizes[-1]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of W1, b1, ..., WL, bL, in this order: ``W[l]`` is (H_l, H_{l-1}), ``b[l]`` is (H_l,)."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in self.layers:
            shapes[f"W{layer}"] = (self.sizes[layer], self.sizes[layer - 1])
            shapes[f"b{layer}"] = (self.sizes[layer],)
        return shapes

    @property
    def parameter_count(self) -> int:
        return sum(self.sizes[layer] * (self.sizes[layer - 1] + 1) for layer in self.layers)

    def __str__(self) -> str:
        head = {"softmax": "softmax cross-entropy", "sigmoid": "sigmoid cross-entropy per class"}[self.head]
        return f"{'-'.join(map(str, self.sizes))}, {self.activation}, {head}"
