"""The null device: a stand-in for any driver, which notes the kernels that are loaded and does nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.errors import UserError
from pyrt.job import Job
from pyrt.kernels import KERNELS, KernelLibrary
from tests.pyrt.exchange.trainer import BUCKETS, PEERS, Trainer
from tests.pyrt.fakes import missing_from_protocol

F4 = np.dtype("f4")


@pytest.fixture
def null() -> NullDriver:
    return NullDriver(DeviceProperties("a GPU", "sm_90a", 132, 232448))


def test_it_has_all_that_a_driver_has(null: NullDriver) -> None:
    assert missing_from_protocol(null) == []


class TestSources:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        rules = "// constants: WIDE=0|1 RULE=*.cuh\n#include RULE\n"
        (tmp_path / "mine.cu").write_text(f'{rules}extern "C" __global__ void f(number *x) {{}}\n')
        for name in ("float", "double"):
            (tmp_path / f"{name}.cuh").write_text(f"typedef {name} number;\n")
        return tmp_path

    def test_those_that_were_loaded_are_whole_and_there_once_in_order(
        self, null: NullDriver, folder: Path
    ) -> None:
        """Of another library too."""
        wanted = [{"WIDE": 1, "RULE": "double.cuh"}, {"WIDE": 0, "RULE": "float.cuh"}]
        libraries = [KernelLibrary(null, [folder], str(folder / "cache")) for _ in range(2)]
        assert list(null.sources) == []
        for constants in (*wanted, wanted[0]):
            for library in libraries:
                library.kernel("mine", "f", **constants)
        assert list(null.sources) == [libraries[0].source("mine", constants) for constants in wanted]
        assert ["typedef double number;" in source for source in null.sources] == [True, False]

    def test_what_is_compiled_ahead_alone_is_not_among_them(self, null: NullDriver, folder: Path) -> None:
        library = KernelLibrary(null, [folder], str(folder / "cache"))
        library.compile([("mine", {"WIDE": 0, "RULE": "float.cuh"})])
        assert list(null.sources) == [] and not (folder / "cache").exists()

    def test_mistakes_are_those_of_a_device(self, null: NullDriver, folder: Path) -> None:
        library = KernelLibrary(null, [folder], str(folder / "cache"))
        with pytest.raises(UserError, match="has no kernel g; it has f"):
            library.kernel("mine", "g", WIDE=0, RULE="float.cuh")
        with pytest.raises(ValueError, match="declared"):
            library.kernel("mine", "f", WIDE=2, RULE="float.cuh")
        x = DeviceArray.empty(null, (4,), "f8")
        with pytest.raises(TypeError, match="argument x is an array of float32, not float64"):
            library.kernel("mine", "f", WIDE=0, RULE="float.cuh").bind((1,), (1,), x)

    def test_a_launch_does_nothing(self, null: NullDriver) -> None:
        x = DeviceArray.empty(null, (4,), "f4")
        kernel = KernelLibrary(null, [KERNELS]).kernel("nn/column_sums", "column_sums", REAL="float")
        launch = kernel.bind((1,), (8, 8), 2, 2, x, 2, x)
        launch(null.create_stream())
        null.synchronize()

    @pytest.mark.parallel([3])
    @pytest.mark.parametrize("name", [*PEERS, "host"])
    def test_an_exchange_loads_the_same_on_a_device(
        self, driver: Driver, job: Job, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So all that ranks will load can be compiled before the first of them does."""
        null, load = NullDriver.like(driver), driver.load_module
        loaded: dict[str, None] = {}

        def load_module(source: str, cache_dir: str) -> object:
            loaded[source] = None
            return load(source, cache_dir)

        monkeypatch.setattr(driver, "load_module", load_module)
        node = job.comm.Split(job.rank // 2, job.rank) if name == "hierarchical" else job.node
        for device in (null, driver):
            Trainer(name, device, job, BUCKETS["with a loss"], F4, node).exchange.close()
        assert list(null.sources) == list(loaded) != []
