"""Which exchange a job takes: by what is there and works, with the reason, and the same on every rank."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.emulated import EmulatedDriver
from pyrt.errors import UserError
from pyrt.exchange import choose, device
from pyrt.exchange.choose import ExchangeChoice
from pyrt.exchange.registry import choices
from pyrt.job import AgreedError, Job
from pyrt.mpi_probe.libraries import Verdict
from tests import few

# A real GPU that the ranks share is no device of their own: what `auto` finds is tested on the emulated one.
pytestmark = pytest.mark.kernels


@pytest.fixture
def own() -> Iterator[EmulatedDriver]:
    """A device of each rank's own, whose memory the others reach."""
    device = EmulatedDriver()
    yield device
    device.close()


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """No probe has found that MPI takes device buffers."""
    unproven = Verdict("", iallreduce=False, is_proven=False)
    monkeypatch.setattr(device, "verdict", lambda job, driver: unproven)


def chosen(
    driver: Driver, job: Job, ranks_per_node: int | None = None, asked: str = "auto"
) -> ExchangeChoice:
    """What all ranks choose, seen to be the same."""
    choice = choose.choose(asked, driver, job, ranks_per_node)
    assert set(job.comm.allgather((choice.name, choice.why))) == {(choice.name, choice.why)}
    return choice


@pytest.mark.parallel([2, 3])
def test_one_node_takes_peer_memory(own: EmulatedDriver, job: Job) -> None:
    choice = chosen(own, job)
    assert (choice.name, choice.why) == ("peer", "all GPUs reach each other's memory")
    assert choice.node.size == job.size


@pytest.mark.parallel(few([4], of=[4, 5]))
def test_nodes_take_peer_memory_within_each(own: EmulatedDriver, job: Job) -> None:
    """Two of two ranks, or one of three and one of two."""
    size = 2 if job.size == 4 else 3
    choice = chosen(own, job, ranks_per_node=size)
    assert (choice.name, choice.why) == ("hierarchical", "the GPUs of a node reach each other's memory")
    first = job.rank // size * size
    assert choice.node.allgather(job.rank) == list(range(first, min(first + size, job.size)))


@pytest.mark.parallel([3])
def test_where_a_node_has_one_rank_mpi_is_given_device_buffers(own: EmulatedDriver, job: Job) -> None:
    choice = chosen(own, job, ranks_per_node=2)
    assert choice.name == "device"
    assert choice.why == "a node has one rank; MPI takes device buffers here"


@pytest.mark.parallel([3])
def test_where_nobody_knows_whether_mpi_takes_them_it_is_given_none(
    own: EmulatedDriver, job: Job, unproven: None
) -> None:
    choice = chosen(own, job, ranks_per_node=2)
    assert choice.name == "host"
    assert choice.why == "a node has one rank; no probe has found that MPI takes device buffers"


@pytest.mark.parallel([2])
def test_nodes_of_one_rank_have_no_peers(own: EmulatedDriver, job: Job) -> None:
    choice = chosen(own, job, ranks_per_node=1)
    assert choice.name == "device"
    assert choice.why.startswith("nodes have one rank each; ")


@pytest.mark.parallel([2])
def test_the_cpu_goes_over_the_host(cpu: CpuDriver, job: Job) -> None:
    assert chosen(cpu, job).name == "host"


@pytest.mark.parallel([1])
def test_one_rank_has_nobody_to_sum_with(own: EmulatedDriver, job: Job) -> None:
    for asked in ("auto", *choices()):
        assert chosen(own, job, asked=asked).name == "local"


@pytest.mark.parallel([2])
def test_what_is_named_is_taken_without_a_reason(own: EmulatedDriver, job: Job) -> None:
    for asked in choices():
        choice = chosen(own, job, asked=asked)
        assert (choice.name, choice.why) == (asked, "")


@pytest.mark.parallel([3])
def test_ranks_that_share_a_gpu_do_not_wait_for_each_other_on_it(own: EmulatedDriver, job: Job) -> None:
    """Two of the three."""
    own.device_id = f"GPU {max(1, job.rank)}"
    choice = chosen(own, job)
    assert choice.name == "device"
    assert choice.why.startswith("ranks share a GPU; ")


@pytest.mark.parallel([4])
def test_ranks_share_a_gpu_also_where_they_count_as_of_two_nodes(own: EmulatedDriver, job: Job) -> None:
    """Each two have a GPU for every rank, the same two GPUs."""
    own.device_id = f"GPU {job.rank % 2}"
    choice = chosen(own, job, ranks_per_node=2)
    assert choice.name == "device"
    assert choice.why.startswith("ranks share a GPU; ")


def cannot_import(handle: bytes) -> int:
    raise UserError("no peer access between these: use --exchange host")


@pytest.mark.parallel([3])
def test_what_one_rank_cannot_all_do_not(
    own: EmulatedDriver, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    if job.rank == 1:
        monkeypatch.setattr(own, "import_memory", cannot_import)
    choice = chosen(own, job)
    assert choice.name == "device"
    assert choice.why.startswith("no peer access between these; ")


@pytest.mark.parallel([4])
def test_what_one_node_cannot_none_does(
    own: EmulatedDriver, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    if job.rank == 3:
        monkeypatch.setattr(own, "import_memory", cannot_import)
    choice = chosen(own, job, ranks_per_node=2)
    assert choice.name == "device"
    assert choice.why.startswith("no peer access between these; ")


@pytest.mark.parallel([2])
def test_memory_that_is_another_one_is_not_used(
    own: EmulatedDriver, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a driver maps something, but not what the other rank has written."""
    if job.rank == 0:
        to_another = own.import_memory

        def map_and_overwrite(handle: bytes) -> int:
            pointer = to_another(handle)
            stream = own.create_stream()
            own.fill(pointer, 0x55, 4, stream)
            own.synchronize_stream(stream)
            return pointer

        monkeypatch.setattr(own, "import_memory", map_and_overwrite)
    choice = chosen(own, job)
    assert choice.name == "device"
    assert "reads wrong numbers in another GPU's memory; " in choice.why


@pytest.mark.parallel([2])
def test_trying_leaves_nothing_behind(own: EmulatedDriver, job: Job) -> None:
    for _ in range(3):
        chosen(own, job)
    assert not own._sizes and not own._imported and not own._exported


@pytest.fixture
def two_nodes(job: Job) -> Job:
    """Rank 0 is alone on its node."""
    return Job(job.comm, job.comm.Split(job.rank > 0, job.rank), job.library, job.cores)


@pytest.mark.parallel([3])
def test_a_node_is_on_one(own: EmulatedDriver, two_nodes: Job) -> None:
    with pytest.raises(AgreedError, match=r"--ranks-per-node 2: rank [01] is on another node than"):
        choose.choose("auto", own, two_nodes, ranks_per_node=2)


@pytest.mark.parallel([3])
def test_more_ranks_a_node_than_kernels_are_made_for(
    own: EmulatedDriver, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "MOST_RANKS", (2,))
    choice = chosen(own, job)
    assert choice.name == "device"
    assert choice.why.startswith("more than 2 ranks on a node; ")


@pytest.mark.parallel([4])
@pytest.mark.parametrize(
    ("asked", "ranks_per_node", "colors", "name"),
    [
        ("peer", None, 2, "peer"),
        ("hierarchical", 2, 2, "peer"),  # ranks 0 and 1, 2 and 3: each on one node
        ("host", None, 2, "host"),
        ("peer", None, 4, "local"),
    ],
)
def test_some_ranks_exchange_as_all_do_or_within_their_node(
    own: EmulatedDriver, job: Job, asked: str, ranks_per_node: int | None, colors: int, name: str
) -> None:
    some = chosen(own, job, ranks_per_node, asked).among(job.rank * colors // 4)
    assert (some.name, some.job.size, some.job.node.size) == (name, 4 // colors, 4 // colors)
    assert some.job.comm.allgather(job.rank)[0] == job.rank // (4 // colors) * (4 // colors)


@pytest.mark.parallel([4])
def test_some_ranks_of_several_nodes_have_theirs(own: EmulatedDriver, job: Job) -> None:
    """Ranks 0 and 2, 1 and 3: each alone on its node."""
    some = chosen(own, job, 2, "hierarchical").among(job.rank % 2)
    assert (some.name, some.node.size, some.job.size) == ("host", 1, 2)
