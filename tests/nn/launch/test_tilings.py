"""nn/launch/gemm/wgmma.py: cuts of products on tensor cores fit the device; the fastest ones are taken."""

import itertools

import pytest

from nn.launch.gemm.wgmma import Tiling, candidates, choose_tiling, predicted, products

H100 = {"multiprocessors": 132, "shared_memory": 232448}


def test_every_cut_fits_and_covers():
    for M, N, K in itertools.product([0, 1, 64, 750, 4096, 60000], repeat=3):
        for components in ((1, 3), (3, 1), (3, 3), (1, 1)):
            tiling = choose_tiling(M, N, K, *components, **H100)
            assert 1 <= tiling.stages <= 8 and 1 <= tiling.parts <= max(1, -(-K // 64))
            assert tiling.stages * tiling.stage_bytes(*components) + 1024 <= H100["shared_memory"]
            assert tiling.threads <= 512


@pytest.mark.parametrize(
    "M, N, K, components, expected",
    [  # the fastest of those measured on an H100 or an H200
        (750, 512, 784, (1, 3), "64x64/1"),
        (512, 784, 750, (3, 1), "64x64/1"),
        (3000, 512, 784, (1, 3), "192x64/1"),
        (750, 512, 784, (3, 3), "64x64/1"),
        (512, 784, 750, (3, 3), "64x64/1"),
        (512, 784, 3000, (3, 1), "64x128/2"),  # 2% behind 128 x 64
        (4096, 4096, 4096, (3, 3), "128x128/1"),
        (1024, 4096, 4096, (3, 3), "128x128/1"),
        (4096, 4096, 1024, (3, 3), "128x128/1"),
        (3000, 1024, 1024, (3, 3), "192x128/1"),
        (12000, 2048, 784, (1, 3), "192x128/1"),
        (2048, 784, 12000, (3, 1), "128x128/1"),
        (4096, 4096, 4096, (2, 2), "128x128/1"),
        (4096, 4096, 1024, (2, 2), "128x128/1"),
        (3000, 1024, 1024, (2, 2), "192x128/1"),
        (1024, 1024, 3000, (2, 2), "128x64/1"),
        (12000, 2048, 784, (1, 2), "192x128/1"),
        (2048, 784, 12000, (2, 1), "128x128/1"),
        (4096, 4096, 4096, (1, 1), "ping_pong_128x128/1"),
        (3000, 1024, 1024, (1, 1), "192x128/1"),
        (1024, 1024, 3000, (1, 1), "128x64/1"),
        (2048, 784, 12000, (1, 1), "128x128/1"),
        (12000, 2048, 784, (1, 1), "ping_pong_128x128/1"),
    ],
)
def test_reference_work(M, N, K, components, expected):
    tiling = choose_tiling(M, N, K, *components, **H100)
    assert f"{tiling.tile}/{tiling.parts}" == expected


def test_the_choice_is_the_candidate_that_should_take_least_time():
    for K in (40, 64, 100, 784, 3000):
        cuts = candidates(K, 1, 3, H100["shared_memory"])
        assert len(set(cuts)) == len(cuts) and max(cut.parts for cut in cuts) == min(8, -(-K // 64))
        times = {cut: predicted(cut, 750, 512, K, 1, 3, H100["multiprocessors"]) for cut in cuts}
        assert times[choose_tiling(750, 512, K, 1, 3, **H100)] == min(times.values()) > 0


def test_time_is_by_waves_tiles_and_parts():
    def microseconds(M, K, parts=1, stages=8):
        return predicted(Tiling(64, 64, parts, stages), M, 64, K, 3, 3, 100)

    one = microseconds(64, 64)
    assert microseconds(100 * 64, 64) == one  # all at once
    assert microseconds(101 * 64, 64) == 2 * one
    assert microseconds(64, 65) - one == pytest.approx(microseconds(64, 128) - one)
    assert microseconds(64, 640) - one == pytest.approx(9 * (microseconds(64, 128) - one))
    assert microseconds(64, 128, parts=2) > one  # and a launch that adds the parts
    assert microseconds(64, 64, stages=1) > one  # nothing on its way meanwhile


def test_single_components_take_longer_where_blocks_crowd():
    def microseconds(M, tile):
        return predicted(Tiling(*tile, 1, 8), M, 64, 1024, 1, 1, 100)

    for tile in ((64, 64), (128, 64), (192, 64)):
        one, two = microseconds(100 * tile[0], tile), microseconds(200 * tile[0], tile)
        assert two > 2.2 * one
    assert microseconds(200 * 128, (128, 128)) == 2 * microseconds(100 * 128, (128, 128))


def test_products():
    assert [products(1, 1), products(1, 3), products(2, 2), products(3, 3)] == [1, 3, 3, 6]
