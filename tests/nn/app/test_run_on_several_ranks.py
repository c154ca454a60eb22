"""train.py's `train`: whole runs in process on several ranks, against the reference and one rank."""

import dataclasses
import itertools
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from nn.input import load as load_data
from nn.launch.gemm.versions import GEMM_VERSIONS, TENSOR_ARCHITECTURES, runs_gemm
from nn.model import reference
from nn.model.network import Network
from nn.parallel import buckets
from nn.train.diverged import Diverged
from pyrt.driver.emulated import EmulatedDriver
from pyrt.driver.null import NullDriver
from pyrt.errors import UserError
from pyrt.exchange import host, peer
from pyrt.exchange.device import verdict
from pyrt.exchange.registry import choices
from pyrt.job import Job, join
from pyrt.kernels import KernelLibrary
from tests import LONG, few, standing_still
from tests.nn.small_runs import saved, using
from train import train

CASES = {
    "ragged last batch": {"samples": 45, "batch": 20},
    "uneven split": {"samples": 17, "batch": 7, "activation": "tanh", "momentum": 0.9},
    "ranks without samples": {"samples": 7, "batch": 3, "activation": "relu"},
    "one sample": {"samples": 1, "epochs": 3},
    "deep": {"hidden": (14, 11, 8), "activation": "tanh", "momentum": 0.5, "head": "sigmoid"},
    "repeated samples": {"samples": 120, "batch": 50, "momentum": 0.9, "head": "sigmoid"},
    "in order": {"shuffle": False, "activation": "relu", "val_fraction": 0.1, "val_split": "random"},
}


def differ_from_the_reference(source, monkeypatch, exchanges, **changes):
    """The cases whose parameters end further from the reference than --check allows."""
    failed = []
    exchanges = exchanges if join().size > 1 else exchanges[:1]
    # A bucket a layer in pieces of a row or two, or panels of a few rows.
    for cut, (panel_bytes, piece_bytes) in enumerate(((buckets.PANEL_BYTES, 90), (300, host.PIECE_BYTES))):
        monkeypatch.setattr(buckets, "PANEL_BYTES", panel_bytes)
        monkeypatch.setattr(host, "PIECE_BYTES", piece_bytes)
        for number, (name, case) in enumerate(CASES.items()):
            # Each exchange meets each case, cut one way or the other; of those `make test` takes a fifth.
            for turn, exchange in list(enumerate(exchanges))[(number + cut) % 2 :: 2]:
                if not LONG and (number + turn // 2 + cut) % 5 and len(exchanges) > 1:
                    continue
                dtype = ("float32", "float64")[(number + turn // 2) % 2]
                options = using(check=True, data=source, dtype=dtype, exchange=exchange, **case, **changes)
                report = train(options)
                standing_still.allow()
                if not report.passed:
                    failed.append((name, dtype, exchange, panel_bytes, str(report.check)))
    return failed


@pytest.mark.parallel(few([4], of=[1, 2, 3, 4]))
def test_ranks_train_the_network_of_the_reference(digits, monkeypatch):
    without_kernels = [name for name in choices() if name not in ("peer", "hierarchical")]
    assert not differ_from_the_reference(digits(test=2), monkeypatch, without_kernels)


@pytest.mark.long
@pytest.mark.parallel(few([2], of=[1, 2, 3, 4]))
def test_kernels_train_the_network_of_the_reference(driver, digits, monkeypatch):
    """Having the ``driver`` open keeps a GPU's context from one run to the next."""
    where = {"device": driver.name, "share_gpus": True}
    exchanges = [name for name in choices() if name != "device" or verdict(join(), driver).is_proven]
    assert not differ_from_the_reference(digits(test=2), monkeypatch, exchanges, **where)


@pytest.mark.parallel([2])
def test_without_an_exchange_each_rank_trains_on_its_part_alone(shared, tmp_path):
    """As one rank with that part, half the rate and twice the decay: gradients are of the batch's mean."""
    rng, job = np.random.default_rng(3), join()
    images, labels = rng.integers(0, 256, (20, 3, 4)).astype(np.uint8), np.arange(20) % 3
    if job.rank == 0:
        np.savez(shared / "all.npz", x_train=images, y_train=labels)
    part = slice(10 * job.rank, 10 * job.rank + 10)
    np.savez(tmp_path / f"part{job.rank}.npz", x_train=images[part], y_train=labels[part])
    job.comm.barrier()
    options = using(epochs=5, shuffle=False, dtype="float64", print_every=1)
    apart = train(using(options, data=str(shared / "all.npz"), exchange="local"))
    here = tmp_path / f"part{job.rank}.npz"
    alone = train(
        using(options, data=str(here), batch=10, lr=options.lr / 2, reg=2 * options.reg),
        Job(MPI.COMM_SELF, MPI.COMM_SELF, job.library, job.cores),
    )
    losses = np.array([loss for _, loss in apart.losses])
    np.testing.assert_allclose(2 * losses, [loss for _, loss in alone.losses], rtol=1e-12)
    assert len(set(job.comm.allgather(losses[-1]))) == 2
    assert apart.environment["exchange"] == "local"
    assert any(line.startswith("exchange  local: none") for line in apart.environment["header"])


def left_of_peers():
    """Open files, watchdogs, and mappings of shared memory that this process has."""
    maps = Path("/proc/self/maps").read_text()
    watchdogs = sum(thread.name == "watchdog" for thread in threading.enumerate())
    return len(os.listdir("/proc/self/fd")), watchdogs, maps.count("memfd:pyrt-")


@pytest.mark.parallel([2])
def test_runs_over_peer_memory_leave_nothing_behind(driver, digits):
    """Neither those that end well, of changing sizes, nor those whose loss is not finite."""
    where = {"device": driver.name, "share_gpus": True, "exchange": "peer", "data": digits(test=2)}
    for units in range(3, 7 if LONG else 5):
        train(using(hidden=(units,), epochs=1, **where))
        with pytest.raises(Diverged):
            train(using(hidden=(units,), lr=1e300, **where))
        if units == 3:
            before = left_of_peers()
    assert left_of_peers() == before
    assert before[1:] == (0, 0)


@pytest.mark.parallel([2])
def test_a_run_over_peer_memory_that_diverges_closes_its_exchange_on_all_ranks(driver, digits, monkeypatch):
    closed = []
    close = peer.PeerExchange.close
    monkeypatch.setattr(peer.PeerExchange, "close", lambda ended: (closed.append(ended), close(ended)))
    with pytest.raises(Diverged):
        train(using(device=driver.name, share_gpus=True, exchange="peer", data=digits(), lr=1e300, epochs=9))
    assert len(set(closed)) == 2  # that on the null device, which counted memory, and the run's
    assert join().comm.allgather(len(closed)) == [2, 2]
    assert left_of_peers()[1] == 0


@pytest.mark.parametrize("gemm", few(["naive"], of=GEMM_VERSIONS))
def test_every_gemm_trains_the_network_of_the_reference(driver, gemm):
    if not runs_gemm(gemm, driver.architecture):
        pytest.skip("needs other tensor cores")
    assert train(using(device=driver.name, gemm=gemm, check=True, samples=110)).passed


@pytest.mark.long
@pytest.mark.parallel([2])
@pytest.mark.parametrize("exchange", few(["peer"], of=choices()))
def test_components_of_weights_follow_them_on_every_rank(driver, digits, monkeypatch, exchange):
    """Wherever these were updated: gradients of a rank whose products took old ones would be far off."""
    if not runs_gemm("wgmma", driver.architecture):
        pytest.skip("needs the tensor cores of sm_90")
    monkeypatch.setattr(host, "PIECE_BYTES", 2000)
    source = digits(320, test=10, shape=(6, 8))
    where = {"device": driver.name, "share_gpus": True, "gemm": "wgmma", "exchange": exchange}
    report = train(using(hidden=(72, 70), batch=160, epochs=2, lr=1.0, data=source, check=True, **where))
    assert report.passed, str(report.check)


@pytest.fixture
def sources(monkeypatch):
    """Those that are compiled before a run, and those that it loads."""
    compiled, loaded = set(), set()
    compile, load = KernelLibrary.compile_sources, KernelLibrary._load

    def noting_compile(library, sources):
        compiled.update(sources := list(sources))
        compile(library, sources)

    def noting_load(library, file, constants):
        if not isinstance(library.driver, NullDriver):
            loaded.add(library.source(file, constants))
        return load(library, file, constants)

    monkeypatch.setattr(KernelLibrary, "compile_sources", noting_compile)
    monkeypatch.setattr(KernelLibrary, "_load", noting_load)
    return compiled, loaded


BETWEEN = list(
    itertools.product(["device", "peer", "hierarchical"], [{}, {"plan": "model"}, {"optimiser": "adam"}])
)
CHANGES = [
    {},
    {"hidden": (72, 40)},
    {"hidden": (16,)},
    {"profile": True},
    {"batch": 20},
    {"math": "tf32"},
    {"math": "tf32", "profile": True},
    {"math": "bf16"},
    {"gemm": "mma"},
    {"gemm": "mma", "math": "tf32"},
    {"gemm": "tiled"},
    {"optimiser": "adam"},
]


@pytest.mark.long
@pytest.mark.parametrize("changes", few(CHANGES[1:3], of=CHANGES), ids=str)
def test_all_kernels_of_a_run_are_compiled_by_one_rank(driver, digits, sources, changes):
    check_compiled(driver, digits, sources, changes)


PIXELS = [(40, np.float32), (40, np.uint8), (10, np.float32)]
"""Classes, and the type of pixels."""


@pytest.mark.long
@pytest.mark.parametrize("changes", few([{"math": "bf16"}], of=CHANGES), ids=str)
@pytest.mark.parametrize(("classes", "pixel"), few(PIXELS[:1], of=PIXELS))
def test_so_are_those_of_many_classes_and_other_pixels(driver, digits, sources, changes, classes, pixel):
    check_compiled(driver, digits, sources, changes, classes, pixel)


def check_compiled(driver, digits, sources, changes, classes=10, pixel=np.uint8):
    """What is loaded later than that would be compiled by every rank of a node; more cases of it are in
    tests/test_compiled_ahead.py."""
    if driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    source = digits(100, test=45, dtype=pixel, shape=(6, 8), classes=classes)
    options = {"device": driver.name, "gemm": "wgmma", "hidden": (72,), "batch": 40, "data": source}
    train(using(epochs=1, **{**options, **changes}))
    compiled, loaded = sources
    assert loaded and loaded <= compiled


@pytest.mark.parallel([2])
@pytest.mark.parametrize(("exchange", "changes"), few(BETWEEN[2:7:2], of=BETWEEN), ids=str)
def test_so_are_those_that_sum_and_move_between_ranks(driver, digits, sources, exchange, changes):
    """By the first rank of a node, for all of them."""
    if exchange == "device" and not verdict(join(), driver).is_proven:
        pytest.skip("this MPI takes no device buffers")
    where = {"device": driver.name, "share_gpus": True, "exchange": exchange, "data": digits()}
    train(using(epochs=1, **where, **changes))
    compiled, loaded = sources
    compiled = join().comm.bcast(compiled)
    assert any("/comm/" in source for source in loaded) and loaded <= compiled


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_a_gpu_and_the_emulated_device_train_the_same_weights(driver, tmp_path, dtype, tolerance):
    """To rounding: a GPU contracts a b + c to one rounding, has an exp of its own, and may take another
    product with another order of sums. Over the four steps NumPy is 7e-7 and 1e-15 away from the emulated
    device for such reasons; a wrong kernel would be off by far more than the ten times that are allowed.
    """
    weights = {}
    for device in (driver.name, "emulated"):
        file = tmp_path / f"{device}.npz"
        options = using(hidden=(64,), batch=256, samples=1024, epochs=1, lr=1.0, reg=1e-4, dtype=dtype)
        train(dataclasses.replace(options, device=device, val_fraction=0.1, save=file))
        with np.load(file) as arrays:
            weights[device] = {name: arrays[name] for name in arrays.files if name != "run"}
    for name, expected in weights["emulated"].items():
        error = np.abs(weights[driver.name][name] - expected).max() / np.abs(expected).max()
        assert error < tolerance, name


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel(few([3], of=[1, 3]))
def test_every_order_and_the_checks_give_the_same_bits(shared):
    """On the emulated device; the checks find nothing."""
    small = {"data": "synthetic:8x8x1:5:120", "samples": 50, "batch": 20, "save": shared / "w.npz"}
    options = using(device="emulated", hidden=(9, 7), epochs=2, **small)
    runs = []
    for changes in ({}, {"sanitize": True}, {"order_seed": 1}, {"order_seed": 2}):
        train(using(options, **changes))
        runs.append(saved(options.save))
    assert all(weights == runs[0] for weights in runs)


@pytest.mark.parallel([4])
def test_more_ranks_than_samples_evaluate_as_one_does(digits, shared):
    """A test set of 2 and a validation set of 3 on 4 ranks: every rank has the scores of all samples."""
    options = using(
        data=digits(training=30, test=2),
        batch=3,
        val_fraction=0.1,
        dtype="float64",
        save=shared / "w.npz",
    )
    trained = train(options)
    evaluated = train(
        using(options, save=None, evaluate=True, init=shared / "w.npz", predictions=shared / "labels")
    )
    with np.load(shared / "w.npz") as file:
        weights = {name: file[name] for name in file.files if name != "run"}
    found = load_data(options.data)

    def precision(images, labels):
        network = Network.dense((12, 9, 3), "sigmoid", "softmax")
        _, logits = reference.forward(weights, images / 255, network)
        return (logits.argmax(axis=1) == labels).mean(), reference.losses(logits, labels, "softmax").mean()

    expected = precision(found.test_images, found.test_labels)
    assert (trained.test.precision, trained.test.loss) == pytest.approx(expected)
    assert evaluated.test == trained.test
    assert evaluated.test.samples == 2 and len((shared / "labels").read_text().splitlines()) == 2
    expected, _ = precision(found.images[27:], found.labels[27:])
    assert trained.epochs[-1].validation_precision == pytest.approx(expected)


@pytest.mark.parallel([3])
def test_all_ranks_raise_what_one_finds(tmp_path, digits):
    """Rank 0 alone reads and writes files; each of these raises on every rank, and the job goes on."""
    source = digits()
    mistakes = [
        ({"save": tmp_path / "missing" / "w.npz", "data": source}, "--save"),
        ({"data": str(tmp_path / "missing.npz")}, "missing.npz"),
        ({"init": tmp_path / "missing.npz", "data": source}, "--init"),
        ({"evaluate": True, "init": tmp_path / "missing.npz", "data": source}, "--evaluate"),
        ({"lr": 1e300, "epochs": 9, "data": source}, "epoch"),
    ]
    for changes, error in few(mistakes[1:4], of=mistakes):
        with pytest.raises(UserError, match=error):
            train(using(**changes))
    assert train(using(data=source)).epochs


@pytest.mark.parametrize(
    "how", [{"device": "cpu"}, {"device": "emulated"}, {"device": "emulated", "gemm": "tiled"}]
)
def test_math_without_tensor_cores_is_an_error(driver, how):
    with pytest.raises(UserError, match="--math tf32: goes with tensor cores, and"):
        train(using(math="tf32", **how))


@pytest.mark.parametrize("options", [{}, {"memory": True}, {"evaluate": True, "init": "w.npz"}])
@pytest.mark.parametrize("gemm", GEMM_VERSIONS)
def test_a_version_of_the_product_without_kernels_is_an_error(gemm, options):
    """Whatever the run is for; NumPy has one product."""
    with pytest.raises(
        UserError, match=f"--gemm {gemm}: needs kernels, and cpu, .*, runs none: use --device"
    ):
        train(using(device="cpu", gemm=gemm, **options))


@pytest.mark.parametrize("gemm", ["mma", "wgmma"])
def test_tensor_cores_that_are_not_there_are_an_error(driver, monkeypatch, gemm):
    monkeypatch.setattr(EmulatedDriver, "architecture", "sm_75")
    with pytest.raises(UserError, match=f"--gemm {gemm}: emulated, .*, has no such tensor cores: use --gemm"):
        train(using(device="emulated", gemm=gemm))


@pytest.mark.long
@pytest.mark.parallel([4])
def test_a_number_that_is_none_in_one_ranks_part_stops_all_at_the_same_step(driver, shared, capfd):
    """Pixels that overflow, of sample 47 of 80: in rank 1's part of the third batch."""
    job = join()
    if job.rank == 0:
        images = np.random.default_rng(0).random((80, 3, 4)).astype(np.float32)
        images[47] = 3e38
        np.savez(shared / "huge.npz", x_train=images, y_train=np.arange(80) % 3)
    job.comm.barrier()
    options = using(data=str(shared / "huge.npz"), activation="relu", pixel_scale=1.0, shuffle=False)
    for exchange in few(["host", "peer"], of=choices()):
        where = "cpu" if exchange in ("root", "blocking") else driver.name
        nodes = 2 if exchange == "hierarchical" else None
        if exchange == "device" and not verdict(job, driver).is_proven:
            continue
        with pytest.raises(Diverged, match="the loss is nan at epoch 1, step 3: no result was") as caught:
            train(using(options, device=where, share_gpus=True, exchange=exchange, ranks_per_node=nodes))
        assert caught.value.code == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parallel([2])
def test_ranks_with_gpus_of_different_kinds_take_the_same_product(driver, monkeypatch):
    if driver.name != "emulated":
        pytest.skip("needs devices that say what they are told to")
    options = using(device="emulated", hidden=(8,), batch=10, samples=20, epochs=1, check=True)
    for other, gemm in few([("sm_80", "mma")], of=[("sm_75", "tiled"), ("sm_80", "mma")]):
        monkeypatch.setattr(EmulatedDriver, "architecture", "sm_90a" if join().rank == 0 else other)
        report = train(options)
        assert report.passed, str(report.check)
        assert set(join().comm.allgather(report.environment["gemm"])) == {gemm}
        with pytest.raises(UserError, match=r"--gemm wgmma: .*, has no such tensor cores"):
            train(using(options, gemm="wgmma"))
