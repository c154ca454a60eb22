"""nn/take_columns.cu: the bits of NumPy, and nothing beside them."""

import numpy as np
import pytest

from nn.launch.take_columns import TakeColumns


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("rows", "columns", "part"), [(1, 1, (0, 1)), (77, 5, (3, 5)), (130, 70, (1, 67)), (9, 8, (0, 4))]
)
def test_some_columns_of_a_matrix(kernels, device, rng, dtype, rows, columns, part):
    matrix = rng.normal(0, 1, (rows, columns)).astype(dtype)
    own = part[1] - part[0]
    room = device.poisoned((rows + 1, own), dtype)
    work = TakeColumns(device.array(matrix).columns(*part), room.rows(0, rows))
    device.run(work.on_device(kernels))
    found = room.to_host()
    assert np.array_equal(found[:rows], matrix[:, slice(*part)])
    assert np.isnan(found[rows]).all()


def test_a_target_that_does_not_fit(kernels, device, rng, dtype):
    matrix = device.array(rng.normal(0, 1, (4, 6)).astype(dtype))
    with pytest.raises(ValueError, match=r"take_columns: Y of shape \(4, 2\) is not a contiguous \(4, 3\)"):
        TakeColumns(matrix.columns(0, 3), device.poisoned((4, 2), dtype)).on_device(kernels)
