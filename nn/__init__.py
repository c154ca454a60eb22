"""nn: neural networks trained over pyrt, on one GPU or many.

    import nn, pyrt

    net = nn.Network((784,), [nn.Dense(512, "sigmoid"), nn.Dense(10)], loss="softmax")
    with pyrt.start() as runtime:
        trainer = nn.Trainer(net, nn.Sgd(lr=0.07, momentum=0.9), nn.load("embedded"), runtime, batch=3000)
        for epoch in trainer.epochs(5):
            print(epoch.loss, epoch.accuracy)

=============== ==================================================================================
``model``       what a network is: layers, loss, initial values; the same in NumPy (reference)
``files``       files of arrays, read with care and written whole or not at all
``optimisers``  the rules by which parameters follow their gradients
``parallel``    who has what: the plan, a rank's shard, buckets of gradients
``input``       data sets, order of samples, prefetch, resident or streamed
``launch``      kernel launches of operations, and their NumPy functions
``program``     a step as a list of operations, and the rules that rewrite it
``problem``     what is trained with which settings, and how far it has come
``autotune``    rates of this machine, cost of a plan, search
``checkpoints`` all that a run needs to go on as if it had never stopped
``train``       trainer, replay from graphs, losses, evaluation, inference, check
``app``         options, what train.py does with them, report, memory table, console
=============== ==================================================================================

Each folder imports those above it, and pyrt, but none below it.
`nn.filters` is a program: a lecture's filters, applied to an image by the operations of networks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nn.input import Dataset, load
    from nn.model.conv2d import Conv2d
    from nn.model.dense import Dense
    from nn.model.dropout import Dropout
    from nn.model.network import Network
    from nn.model.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d
    from nn.optimisers import Adam, Sgd
    from nn.train.inference import Inference
    from nn.train.trainer import Trainer

_WHERE = {
    **{"Network": "nn.model.network", "Dense": "nn.model.dense", "Conv2d": "nn.model.conv2d"},
    "Dropout": "nn.model.dropout",
    **dict.fromkeys(("AvgPool2d", "GlobalAvgPool2d", "MaxPool2d"), "nn.model.pool"),
    **{"Sgd": "nn.optimisers", "Adam": "nn.optimisers"},
    **{"load": "nn.input", "Dataset": "nn.input"},
    **{"Trainer": "nn.train.trainer", "Inference": "nn.train.inference"},
}

__all__ = [
    "Adam",
    "AvgPool2d",
    "Conv2d",
    "Dataset",
    "Dense",
    "Dropout",
    "GlobalAvgPool2d",
    "Inference",
    "MaxPool2d",
    "Network",
    "Sgd",
    "Trainer",
    "load",
]


def __getattr__(name: str) -> Any:
    """Load what is asked for, not before: NumPy's BLAS takes its threads when it loads."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
