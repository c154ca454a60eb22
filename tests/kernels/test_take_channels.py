"""conv/take_channels.cu: the bits of NumPy, and nothing beside them."""

import numpy as np
import pytest

from nn.launch.channels import TakeChannels


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("pixels", "channels", "part"), [(1, 1, (0, 1)), (77, 5, (3, 5)), (130, 70, (1, 67)), (9, 8, (0, 4))]
)
def test_some_channels(kernels, device, rng, dtype, pixels, channels, part):
    images = rng.normal(0, 1, (pixels, channels)).astype(dtype)
    own = part[1] - part[0]
    room = device.poisoned((pixels + 1, own), dtype)
    work = TakeChannels(device.array(images).columns(*part), room.rows(0, pixels))
    device.run(work.on_device(kernels))
    found = room.to_host()
    assert np.array_equal(found[:pixels], images[:, slice(*part)])
    assert np.isnan(found[pixels]).all()


def test_a_target_that_does_not_fit(kernels, device, rng, dtype):
    images = device.array(rng.normal(0, 1, (4, 6)).astype(dtype))
    with pytest.raises(ValueError, match=r"take_channels: Y of shape \(4, 2\) is not a contiguous \(4, 3\)"):
        TakeChannels(images.columns(0, 3), device.poisoned((4, 2), dtype)).on_device(kernels)
