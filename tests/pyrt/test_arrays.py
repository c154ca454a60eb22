"""Device arrays, their views, pinned arrays, and arenas, on the device whose memory the host can look at."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyrt.arrays import ALIGNMENT, Arena, DeviceArray, Layout, mapped, pinned
from pyrt.driver.cpu import CpuDriver

MATRIX = np.arange(35, dtype=np.float32).reshape(5, 7)


@pytest.fixture
def matrix(cpu: CpuDriver) -> DeviceArray:
    return DeviceArray.from_host(cpu, MATRIX)


class TestDeviceArray:
    @pytest.mark.parametrize("dtype", ["u1", "u4", "i4", "i8", "f2", "f4", "f8"])
    @pytest.mark.parametrize(
        "shape", [(1,), (13,), (5, 7), (0, 7), (0,), (), (2, 3, 4), (2, 3, 4, 5), (0, 3, 4)]
    )
    def test_a_copy_there_and_back_is_the_same(
        self, cpu: CpuDriver, shape: tuple[int, ...], dtype: str
    ) -> None:
        host = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
        array = DeviceArray.from_host(cpu, host)
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert (array.size, array.nbytes) == (host.size, host.nbytes)
        assert array.ld == (shape[-1] if shape else 1)
        assert array.is_contiguous
        for back in (array.to_host(), array.host_view()):
            assert back.dtype == host.dtype
            np.testing.assert_array_equal(back, host)

    def test_it_is_aligned(self, cpu: CpuDriver) -> None:
        assert all(DeviceArray.empty(cpu, (n,), "u1").pointer % ALIGNMENT == 0 for n in (1, 3, 1000))

    def test_set_converts_and_copies(self, cpu: CpuDriver) -> None:
        array = DeviceArray.empty(cpu, (3, 2), "f4")
        host = np.arange(6, dtype="f8").reshape(2, 3).T  # neither the dtype nor the order of the array
        array.set(host)
        expected = host.astype("f4")
        host[:] = 0
        np.testing.assert_array_equal(array.to_host(), expected)

    def test_to_host_is_a_copy_and_host_view_the_memory(self, matrix: DeviceArray) -> None:
        copy, view = matrix.to_host(), matrix.host_view()
        view[4, 6] = -1
        assert copy[4, 6] == 34
        assert matrix.to_host()[4, 6] == -1

    @pytest.mark.parametrize(("start", "stop"), [(0, 5), (1, 4), (4, 5), (2, 2), (5, 5)])
    def test_rows(self, matrix: DeviceArray, start: int, stop: int) -> None:
        view = matrix.rows(start, stop)
        assert view.is_contiguous
        np.testing.assert_array_equal(view.host_view(), MATRIX[start:stop])
        np.testing.assert_array_equal(view.to_host(), MATRIX[start:stop])

    @pytest.mark.parametrize(("start", "stop"), [(0, 7), (2, 5), (6, 7), (3, 3)])
    def test_columns(self, matrix: DeviceArray, start: int, stop: int) -> None:
        view = matrix.columns(start, stop)
        assert (view.shape, view.ld) == ((5, stop - start), 7)
        np.testing.assert_array_equal(view.host_view(), MATRIX[:, start:stop])

    def test_rows_of_columns_of_rows(self, matrix: DeviceArray) -> None:
        view = matrix.rows(1, 5).columns(2, 6).rows(1, 3).columns(1, 4)
        np.testing.assert_array_equal(view.host_view(), MATRIX[2:4, 3:6])
        view.host_view()[:] = 0
        assert matrix.to_host().sum() == MATRIX.sum() - MATRIX[2:4, 3:6].sum()

    def test_rows_of_a_vector_are_its_elements(self, cpu: CpuDriver) -> None:
        vector = DeviceArray.from_host(cpu, np.arange(10))
        np.testing.assert_array_equal(vector.rows(3, 8).rows(1, 3).to_host(), [4, 5])

    def test_images_have_rows_and_other_shapes_and_no_columns(self, cpu: CpuDriver) -> None:
        images = np.arange(3 * 4 * 5 * 2, dtype=np.float32).reshape(3, 4, 5, 2)
        array = DeviceArray.from_host(cpu, images)
        np.testing.assert_array_equal(array.rows(1, 3).to_host(), images[1:3])
        np.testing.assert_array_equal(array.rows(1, 3).rows(1, 2).host_view(), images[2:3])
        array.rows(0, 1).set(np.zeros((1, 4, 5, 2)))
        np.testing.assert_array_equal(array.to_host()[:, 0, 0, 0], [0, 40, 80])
        flat = array.reshape(3, 40)
        assert flat.ld == 40
        np.testing.assert_array_equal(flat.reshape(3, 4, 5, 2).rows(2, 3).to_host(), images[2:])
        with pytest.raises(IndexError, match=r"columns 0:1 of an array of shape \(3, 4, 5, 2\)"):
            array.columns(0, 1)

    def test_what_counts_as_contiguous(self, matrix: DeviceArray) -> None:
        assert matrix.is_contiguous
        assert matrix.columns(0, 7).is_contiguous
        assert not matrix.columns(0, 6).is_contiguous
        assert matrix.columns(2, 6).rows(1, 2).is_contiguous  # one row has no gaps

    def test_reshape(self, matrix: DeviceArray) -> None:
        np.testing.assert_array_equal(matrix.reshape(35).host_view(), MATRIX.reshape(35))
        np.testing.assert_array_equal(
            matrix.reshape(7, 5).columns(1, 3).host_view(), MATRIX.reshape(7, 5)[:, 1:3]
        )
        np.testing.assert_array_equal(matrix.columns(2, 6).rows(3, 4).reshape(4).to_host(), MATRIX[3, 2:6])

    @pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 8), (3, 2)])
    def test_a_view_outside_is_refused(self, matrix: DeviceArray, start: int, stop: int) -> None:
        with pytest.raises(IndexError, match=rf"rows {start}:{stop} of an array of shape \(5, 7\)"):
            matrix.rows(start, stop)
        with pytest.raises(IndexError, match=rf"columns {start}:{stop} of an array of shape \(5, 7\)"):
            matrix.columns(start, stop)

    def test_a_vector_has_no_columns(self, cpu: CpuDriver) -> None:
        with pytest.raises(IndexError, match=r"columns 0:1 of an array of shape \(3,\)"):
            DeviceArray.empty(cpu, (3,), "f4").columns(0, 1)

    def test_a_view_of_another_size_or_with_gaps_is_refused(self, matrix: DeviceArray) -> None:
        with pytest.raises(ValueError, match=r"shape \(5, 7\) has no view of shape \(6, 6\)"):
            matrix.reshape(6, 6)
        with pytest.raises(ValueError, match="no view"):
            matrix.columns(0, 6).reshape(30)

    @pytest.mark.parametrize("shape", [(7, 5), (35,), (5, 6), (5, 1)])
    def test_set_takes_its_own_shape_only(self, matrix: DeviceArray, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="does not fit"):
            matrix.set(np.zeros(shape))

    def test_some_columns_are_not_copied(self, matrix: DeviceArray) -> None:
        with pytest.raises(ValueError, match="not contiguous"):
            matrix.columns(0, 6).to_host()
        with pytest.raises(ValueError, match="does not fit"):
            matrix.columns(0, 6).set(np.zeros((5, 6)))


@pytest.mark.parametrize(("shape", "dtype"), [((3, 5), "f4"), ((7,), "u1"), ((0, 4), "f8")])
def test_pinned_arrays_have_their_shape_and_can_be_written(
    cpu: CpuDriver, shape: tuple[int, ...], dtype: str
) -> None:
    array = pinned(cpu, shape, dtype)
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    array[...] = 3
    assert np.all(array == 3)


@pytest.mark.parametrize(("shape", "dtype"), [((3, 5), "f4"), ((7,), "u1")])
def test_host_and_device_see_the_same_mapped_array(
    cpu: CpuDriver, shape: tuple[int, ...], dtype: str
) -> None:
    host, device = mapped(cpu, shape, dtype)
    assert (host.shape, host.dtype) == (device.shape, device.dtype) == (shape, np.dtype(dtype))
    host[...] = np.arange(host.size).reshape(shape)
    np.testing.assert_array_equal(device.to_host(), host)
    assert device.is_contiguous and device.ld == shape[-1]


SHAPES = {"W1": (5, 13), "b1": (5,), "W2": (64,), "loss": (1,)}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
class TestLayout:
    def test_arrays_lie_aligned_in_the_order_given(self, dtype: str) -> None:
        layout = Layout(SHAPES, dtype)
        spans = [layout.span(name) for name in SHAPES]
        assert [stop - start for start, stop in spans] == [65, 5, 64, 1]
        itemsize = np.dtype(dtype).itemsize
        assert all(start * itemsize % ALIGNMENT == 0 for start, _ in spans)
        ends = [*(start for start, _ in spans[1:]), layout.size]
        for (start, stop), end in zip(spans, ends, strict=True):
            assert start < stop <= end < stop + ALIGNMENT // itemsize

    def test_a_flat_buffer_has_a_view_for_each(self, dtype: str) -> None:
        layout = Layout(SHAPES, dtype)
        flat = np.arange(layout.size).astype(dtype)
        views = layout.views(flat)
        assert {name: view.shape for name, view in views.items()} == SHAPES
        for name, view in views.items():
            assert view.ravel().tolist() == list(range(*layout.span(name))) and view.base is not None
            view += 1
        assert flat.sum() == np.arange(layout.size).sum() + 65 + 5 + 64 + 1

    def test_an_arena_has_a_view_for_each(self, cpu: CpuDriver, dtype: str) -> None:
        arena = Arena(cpu, Layout(SHAPES, dtype))
        for number, (name, shape) in enumerate(SHAPES.items(), 1):
            assert (arena[name].shape, arena[name].dtype) == (shape, np.dtype(dtype))
            arena[name].host_view()[:] = number
        counts = np.bincount(arena.flat.to_host().astype(int))
        assert list(counts[1:]) == [65, 5, 64, 1]

    def test_an_arena_begins_as_zeros_and_keeps_its_padding(self, dtype: str) -> None:
        class Dirty(CpuDriver):
            def allocate(self, nbytes: int) -> int:
                pointer = super().allocate(nbytes)
                self.fill(pointer, 0xFF, nbytes, None)
                return pointer

        arena = Arena(Dirty(), Layout(SHAPES, dtype))
        assert not arena.flat.to_host().any()
        arrays = {name: np.full(shape, 2.5) for name, shape in SHAPES.items()}
        arena.set(arrays)
        assert arena.flat.to_host().sum() == 2.5 * (65 + 5 + 64 + 1)
        back = arena.to_host()
        assert list(back) == list(SHAPES)
        for name in SHAPES:
            np.testing.assert_array_equal(back[name], arrays[name])
