"""Runs a trained network on images: what a program calls that has parameters and trains nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from nn.launch.kernels import Kernels
from nn.model.network import Network
from nn.parallel.shard import Shard
from nn.problem.settings import Settings
from nn.program.light_weights import DENSE, LightWeights, require_way
from nn.program.rank_model import Numbers, RankModel
from nn.train.host_to_host import HostToHost
from nn.train.prepare import replays_graphs, with_common_versions
from pyrt.errors import UserError
from pyrt.kernels import KernelLibrary
from pyrt.runtime import Runtime


class Inference(HostToHost):
    """A network with its parameters on this rank's device; it computes logits of images.

    Each rank has all of the network and works for itself: to make one is collective, to use it is not.
    """

    def __init__(
        self,
        network: Network,
        parameters: Mapping[str, np.ndarray],
        runtime: Runtime,
        batch: int = 1,
        pixels: DTypeLike = np.uint8,
        weights: str = DENSE,
        **settings: Any,
    ) -> None:
        """Put the parameters W1, b1, .. on the device, with room for ``batch`` images at a time.

        ``pixels`` is the dtype of images: uint8, float32 or float64. ``weights`` is dense, sparse, int8 or
        binary, as --weights. ``settings`` are other fields of `Settings`, as ``math="bf16"``. Raises
        UserError, on all ranks, for settings that cannot work, and for parameters that are not the network's.
        """
        driver = runtime.driver
        with runtime.job.agree():
            _require_parameters(network, parameters)
            wanted = Settings(batch=batch, **settings)
            require_way(weights, wanted.dtype)
            light = LightWeights.of(weights, network, parameters)
        wanted = with_common_versions(wanted, runtime)
        with runtime.job.agree():
            kernels = None
            if driver.has_kernels:
                library = KernelLibrary(driver)
                kernels = Kernels(library, wanted.dtype, wanted.gemm, wanted.math, wanted.conv)
            numbers = Numbers(wanted.dtype, kernels, pixel_scale=wanted.pixel_scale)
            model = RankModel(driver, Shard.alone(network), numbers, batch, light)
            model.start({name: np.asarray(parameters[name]) for name in network.shapes})
            graphs = replays_graphs(wanted, driver)
            super().__init__(model, runtime.streams.compute, batch, pixels, graphs)

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Compute the logits (n, classes) of images (n, ..), up to ``batch`` at a time.

        Raises ValueError for images of another size, TypeError for pixels of a wider dtype than ``pixels``.
        """
        count, inputs = len(images), self.pixels.shape[1]
        if math.prod(images.shape[1:]) != inputs:
            raise ValueError(f"images of shape {images.shape[1:]}: the network takes {inputs} pixels")
        result = np.empty((count, self.outputs.shape[1]), self.outputs.dtype)
        for start in range(0, count, self.batch):
            chunk = images[start : start + self.batch].reshape(-1, inputs)
            np.copyto(self.pixels[: len(chunk)], chunk, casting="safe")
            self.bind(len(chunk))()
            result[start : start + len(chunk)] = self.outputs[: len(chunk)]
        return result


def _require_parameters(network: Network, parameters: Mapping[str, np.ndarray]) -> None:
    """Raise UserError unless the network's parameters are there; others beside them do not matter."""
    for name, shape in network.shapes.items():
        if name not in parameters:
            raise UserError(f"Inference: there is no {name} among the parameters")
        found = np.shape(parameters[name])
        if found != shape:
            raise UserError(f"Inference: {name} has shape {found}, and {network!s:.100} needs {shape}")
