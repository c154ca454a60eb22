"""The reference training in PyTorch, one process a GPU, a JSON line for each way of running it:

eager        torch.nn, autograd and SGD as in a tutorial; with several GPUs DistributedDataParallel
step graph   a hand-written step on flat buffers, one all-reduce, in a CUDA graph for each batch
epoch graph  the same, a whole epoch in one CUDA graph
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from bench.baselines import work
from bench.baselines.work import CHECKED, CLASSES, RATE, REG, Task
from bench.program import start
from nn.model.reference import Arrays
from pyrt.errors import UserError

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None

WARM_UP = 3
"""Steps before a capture, in which libraries set themselves up."""


class Place:
    """This process among the ranks, and its device."""

    def __init__(self, rank: int, ranks: int, device: Any) -> None:
        self.rank, self.ranks, self.device = rank, ranks, device

    def tensor(self, array: np.ndarray) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def dtype_of(math: str) -> Any:
    """Return the dtype of what products read and write."""
    return torch.bfloat16 if math == "bf16" else torch.float32


class Eager:
    """The training as most people write it; bf16 by autocast."""

    def __init__(self, task: Task, place: Place, math: str = "float32") -> None:
        self._place, self._math = place, math
        self._X, self._labels = place.tensor(task.X), place.tensor(task.labels)
        layers: list[Any] = []
        for inputs, units in pairwise(task.sizes):
            layers += [torch.nn.Linear(inputs, units), torch.nn.Sigmoid()]
        net = torch.nn.Sequential(*layers[:-1]).to(place.device)
        self._parameters = dict(zip(task.parameters, net.parameters(), strict=True))
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(place.tensor(task.parameters[name]))
        weights = [parameter for name, parameter in self._parameters.items() if name.startswith("W")]
        biases = [parameter for name, parameter in self._parameters.items() if name.startswith("b")]
        groups = [{"params": weights, "weight_decay": REG}, {"params": biases}]
        self._optimizer = torch.optim.SGD(groups, lr=RATE, fused=True)
        self.name = "eager"
        self._net = net
        if place.ranks > 1:
            self.name = "eager DDP"
            self._net = torch.nn.parallel.DistributedDataParallel(
                net, device_ids=[place.device.index], gradient_as_bucket_view=True
            )

    def queue(self, steps: int) -> None:
        for X, labels in zip(self._X[:steps], self._labels[:steps], strict=True):
            self._optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self._place.device.type, torch.bfloat16, enabled=self._math == "bf16"):
                cost = torch.nn.functional.cross_entropy(self._net(X), labels)
            cost.backward()
            self._optimizer.step()

    def wait(self) -> None:
        self._place.wait()

    def parameters(self) -> Arrays:
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._parameters.items()}


class Step:
    """A step without autograd: all parameters in one buffer, all gradients in another.

    Labels are one-hot and the mean over the batch is taken by the update, which saves four kernels. In bf16
    the samples are kept so, and each step casts the parameters once, all in one kernel.
    """

    def __init__(self, task: Task, place: Place, math: str = "float32") -> None:
        self.place = place
        dtype = dtype_of(math)
        self._X = place.tensor(task.X).to(dtype)
        self._targets = place.tensor(np.eye(CLASSES, dtype=np.float32)[task.labels])
        self._dZ = torch.empty(*self._targets.shape[1:], dtype=dtype, device=place.device)
        names = sorted(task.parameters, key=lambda name: name[0])  # the weights, then the biases
        self._shapes = {name: task.parameters[name].shape for name in names}
        self.flat = place.tensor(np.concatenate([task.parameters[name].ravel() for name in names]))
        self._read = self.flat.to(dtype)  # in float32 flat itself
        self._gradients = torch.empty_like(self._read)
        self._W, self._b = self._layers(self._read)
        self._dW, self._db = self._layers(self._gradients)
        self._weights = self.flat[: sum(W.numel() for W in self._W)]
        self._rate = RATE / (task.X.shape[1] * place.ranks)
        self._pool: Any = None

    def _views(self, flat: Any) -> list[Any]:
        parts = flat.split([int(np.prod(shape)) for shape in self._shapes.values()])
        return [part.view(shape) for part, shape in zip(parts, self._shapes.values(), strict=True)]

    def _layers(self, flat: Any) -> tuple[list[Any], list[Any]]:
        """Return views of the weights and of the biases."""
        views = self._views(flat)
        return views[: len(views) // 2], views[len(views) // 2 :]

    def run(self, batch: int) -> None:
        """Queue one step on a batch."""
        if self._read is not self.flat:
            self._read.copy_(self.flat)
        A = [self._X[batch]]
        for W, b in zip(self._W[:-1], self._b[:-1], strict=True):
            A.append(torch.addmm(b, A[-1], W.t()).sigmoid_())
        Z = torch.addmm(self._b[-1], A[-1], self._W[-1].t())
        dZ = torch.sub(torch.softmax(Z, 1, dtype=torch.float32), self._targets[batch], out=self._dZ)
        for layer in reversed(range(len(A))):
            torch.mm(dZ.t(), A[layer], out=self._dW[layer])
            torch.sum(dZ, 0, out=self._db[layer])
            if layer:
                dZ = torch.ops.aten.sigmoid_backward(torch.mm(dZ, self._W[layer]), A[layer])
        if self.place.ranks > 1:
            dist.all_reduce(self._gradients)
        self._weights.mul_(1 - RATE * REG)
        self.flat.add_(self._gradients, alpha=-self._rate)

    def parameters(self) -> Arrays:
        views = zip(self._shapes, self._views(self.flat), strict=True)
        return {name: view.cpu().numpy().copy() for name, view in views}

    def capture(self, batches: Sequence[int]) -> Any:
        """Capture a CUDA graph of a step on each of these batches; the parameters stay as they are."""
        graph = torch.cuda.CUDAGraph()
        # Thread-local: NCCL's watchdog thread looks at events meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            for batch in batches:
                self.run(batch)
        self._pool = graph.pool()  # graphs that never run side by side may use the same memory
        return graph

    def warm_up(self) -> None:
        """Some steps on a stream of their own, as a capture needs them; then the first parameters again."""
        first = self.flat.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.run(0)
        torch.cuda.synchronize()
        self.flat.copy_(first)
        torch.cuda.synchronize()


class StepGraph:
    """A graph for each batch."""

    name = "step graph"

    def __init__(self, task: Task, place: Place, math: str) -> None:
        self._step = Step(task, place, math)
        self._step.warm_up()
        self._graphs = [self._step.capture([batch]) for batch in range(task.batches)]
        self.parameters = self._step.parameters

    def queue(self, steps: int) -> None:
        for graph in self._graphs[:steps]:
            graph.replay()

    def wait(self) -> None:
        self._step.place.wait()


class EpochGraph:
    """A graph for all batches, and one for those of the check."""

    name = "epoch graph"

    def __init__(self, task: Task, place: Place, math: str) -> None:
        self._step = Step(task, place, math)
        self._step.warm_up()
        self._graphs = {count: self._step.capture(range(count)) for count in {CHECKED, task.batches}}
        self.parameters = self._step.parameters

    def queue(self, steps: int) -> None:
        self._graphs[steps].replay()

    def wait(self) -> None:
        self._step.place.wait()


def modes(task: Task, place: Place, math: str) -> Iterator[work.Mode]:
    """Yield all ways of running the training, each made when the one before is done."""
    yield Eager(task, place, math)
    yield StepGraph(task, place, math)
    yield EpochGraph(task, place, math)


def find_place(gpus: int) -> Place:
    """Find this process's place; become torchrun for several GPUs. Raises UserError without them."""
    if torch is None:
        raise UserError("PyTorch is not installed")
    if torch.cuda.device_count() < gpus:
        raise UserError(f"PyTorch sees {torch.cuda.device_count()} GPU(s), not {gpus}")
    is_started = bool(os.environ.get("LOCAL_RANK"))
    if not is_started and gpus > 1:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
        os.execv(sys.executable, [*torchrun, *sys.argv])
    rank, ranks = (int(os.environ[name]) for name in ("LOCAL_RANK", "WORLD_SIZE")) if is_started else (0, 1)
    if ranks != gpus:
        raise UserError(f"torchrun started {ranks} processes: give --gpus {ranks}")
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl", device_id=device)
    return Place(rank, ranks, device)


def main(arguments: Sequence[str]) -> int:
    wanted = work.parse("torch_step.py", __doc__, arguments)
    place = find_place(wanted.gpus)
    for batch in wanted.batches:
        task = work.make_task(batch, wanted.hidden)
        for math in wanted.maths:
            torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
            device = torch.cuda.get_device_name()
            setting = work.Setting("PyTorch", torch.__version__, math, wanted.gpus, device)
            for mode in modes(task.part(place.rank, place.ranks), place, math):
                work.run(mode, task, setting, printing=place.rank == 0)
    if place.ranks > 1:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    start("torch_step.py", main)
