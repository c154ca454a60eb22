"""The filters of a lecture as a convolution: an image before and after, in one picture::

    python -m nn.filters photo.jpg --out filters.png
    python -m nn.filters --device emulated

Box, Gaussian, horizontal and vertical gradients (Sobel's), each 3 x 3, at stride 1 and 2: a convolutional
layer of four filters whose weights nobody trains. It is computed by the operation that networks have
(nn/launch/conv), with the kernels of the device or in NumPy. Each colour is an image of its own. Windows stay
within the image, so what comes out is smaller by two pixels, and about half as large at stride 2.

IMAGE is a PNG or JPEG file; without one the first of the embedded test digits is taken, enlarged.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrt.arguments import Parser
from pyrt.errors import UserError, shown
from pyrt.job import Job, run

if TYPE_CHECKING:  # at run time only once MPI has started: it loads NumPy
    import numpy as np

    from pyrt.driver import Driver

FILTERS = {
    "box": ((1 / 9, 1 / 9, 1 / 9), (1 / 9, 1 / 9, 1 / 9), (1 / 9, 1 / 9, 1 / 9)),
    "Gaussian": ((0.075, 0.124, 0.075), (0.124, 0.204, 0.124), (0.075, 0.124, 0.075)),
    "horizontal gradient": ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1)),
    "vertical gradient": ((-1, -2, -1), (0, 0, 0), (1, 2, 1)),
}
"""Rows of weights. The first two are means, of weights that add up to 1; those of the others add up to 0."""

SIZE, STRIDES = 3, (1, 2)
ENLARGED = 8
"""Pixels of the picture along a side of a digit's pixel."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises UserError if it makes no sense."""
    from nn.app.command_line import file_name
    from pyrt import devices

    parser = Parser("python -m nn.filters", __doc__)
    add = parser.add_argument
    add("image", nargs="?", type=file_name, metavar="IMAGE", help="a PNG or JPEG file (default: a digit)")
    add("--out", type=file_name, default=Path("filters.png"), metavar="FILE", help="default: filters.png")
    add("--device", choices=devices.CHOICES, default="auto", help="as for train.py (default: auto)")
    return parser.parse_args(arguments)


def read(path: Path) -> np.ndarray:
    """Read an image (height, width, 1 or 3), uint8. Raises UserError if it is damaged or too small."""
    from nn.input.class_folders import pixels

    image = pixels(path)
    if min(image.shape[:2]) < SIZE:
        raise UserError(f"{shown(path)}: is smaller than {SIZE} x {SIZE} pixels: give a larger image")
    image = image.reshape(*image.shape[:2], -1)
    return image[..., :3]  # without opacity


def digit() -> np.ndarray:
    """Return the first of the embedded test digits, enlarged (224, 224, 1), uint8."""
    import numpy as np

    from nn.input import load

    data = load("embedded")
    assert data.test_images is not None
    pixels = data.test_images[0].reshape(data.image_shape)
    return np.kron(pixels, np.ones((ENLARGED, ENLARGED), pixels.dtype))[..., np.newaxis]


def apply(driver: Driver, image: np.ndarray, stride: int) -> dict[str, np.ndarray]:
    """Apply each of `FILTERS` to an image (height, width, colours), on a device; pixels become 0 to 1.

    Returns images (rows, columns, colours) float32, by the filter's name.
    """
    import numpy as np

    from nn.launch.conv.convolution import Convolution
    from nn.launch.kernels import Kernels
    from nn.model.conv2d import Conv2d
    from pyrt.arrays import DeviceArray
    from pyrt.kernels import KernelLibrary

    height, width, colours = image.shape
    window = Conv2d(len(FILTERS), SIZE, stride).window((height, width, 1))
    samples = np.moveaxis(image, -1, 0).reshape(colours, -1).astype(np.float32) / np.float32(255)
    weights = np.array(list(FILTERS.values()), np.float32).reshape(len(FILTERS), -1)
    A, W = DeviceArray.from_host(driver, samples), DeviceArray.from_host(driver, weights)
    Z = DeviceArray.empty(driver, (colours, window.places * len(FILTERS)), np.float32)
    work = Convolution(A, Z, W, window)
    if driver.has_kernels:
        work.on_device(Kernels(KernelLibrary(driver), np.float32))(driver.create_stream())
        driver.synchronize()
    else:
        work.in_numpy()()
    filtered = Z.to_host().reshape(colours, window.out_height, window.out_width, len(FILTERS))
    return {name: np.moveaxis(filtered[..., place], 0, -1) for place, name in enumerate(FILTERS)}


def draw(image: np.ndarray, filtered: Mapping[int, Mapping[str, np.ndarray]]) -> bytes:
    """Draw the image and what the filters have made of it, a row for each stride; return a PNG file.

    Gradients are of either sign: grey is 0. Those of colours are drawn as their mean.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(filtered), 1 + len(FILTERS), figsize=(14, 6), layout="constrained", squeeze=False
    )
    for row, (stride, images) in zip(axes, filtered.items(), strict=True):
        _show(row[0], image / 255, "before")
        for axis, (name, after) in zip(row[1:], images.items(), strict=True):
            _show(axis, after, f"{name}, stride {stride}")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    pyplot.close(figure)
    return file.getvalue()


def _show(axis: Any, image: np.ndarray, title: str) -> None:
    """Draw an image (height, width, colours) with its size; ``axis`` is matplotlib's."""
    height, width, colours = image.shape
    if "gradient" in title:
        most = max(abs(image).max(), 1e-6)
        axis.imshow(image.mean(axis=-1), cmap="gray", vmin=-most, vmax=most)
    elif colours == 1:
        axis.imshow(image[..., 0], cmap="gray", vmin=0, vmax=1)
    else:
        axis.imshow(image.clip(0, 1))
    axis.set_title(f"{title}\n{height} x {width}", fontsize=12)
    axis.set_axis_off()


def main(job: Job) -> int:
    """Read, filter, draw. Every rank filters; rank 0 writes."""
    import pyrt

    with job.agree():
        from nn.files.packages import need
        from nn.files.write import require_writable, write_whole

        wanted = parse(sys.argv[1:])
        need("matplotlib", "nn.filters")  # Pillow comes with it
        image = read(wanted.image) if wanted.image is not None else digit()
        if job.rank == 0:
            require_writable("--out", wanted.out)
    with pyrt.start(wanted.device) as runtime:
        filtered = {stride: apply(runtime.driver, image, stride) for stride in STRIDES}
        device = runtime.driver.device_name
    with job.agree():
        if job.rank == 0:
            picture = draw(image, filtered)
            write_whole("--out", wanted.out, lambda file: file.write(picture))
            print(f"{len(FILTERS)} filters on {device}: {shown(wanted.out)}")
    return 0


if __name__ == "__main__":
    run(main)
