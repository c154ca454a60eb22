"""Makes a network that nobody trains: of the images that the options tell, or that it is known for."""

from __future__ import annotations

from collections.abc import Set

from nn.app.options import Options
from nn.input import Wanted, described
from nn.model.net_text import IMAGES
from nn.model.network import Network
from pyrt.errors import UserError

PIXELS, CLASSES = 784, 10
"""Where nothing says more: those of digits."""


def network_on_paper(options: Options, given: Set[str], inputs: int | None = None) -> Network:
    """Make the network; of images as --data has them, else as those that a known network is for.

    ``given`` names the options that the user gave; ``inputs`` are the pixels of an image, as --inputs says
    them. Raises UserError where nothing says what images are like, or the network cannot be.
    """
    if "data" in given:
        if inputs is not None:
            raise UserError("--inputs: --data says what images are like: leave one of them out")
        images = described(options.data, Wanted(options.dtype, options.classes, options.channels))
    elif options.net in IMAGES and inputs is None:
        images = IMAGES[options.net]
    elif options.net is None or inputs is not None:
        images = (inputs or PIXELS,), CLASSES
    else:
        raise UserError(
            "--net: nothing says what images it takes: give --data synthetic:HxWxC:CLASSES:N, or the data set"
        )
    shape, classes = images
    return options.make_network(shape, options.classes or classes)
