"""The fixture of a cluster: `nodes`, of two unless a test asks for more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster, obstacle


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster; skips, and says why, where there can be none.

    ``@pytest.mark.parametrize("nodes", [3], indirect=True)`` makes it of three nodes.
    """
    if obstacle():
        pytest.skip(obstacle())
    with Cluster(getattr(request, "param", 2)) as cluster:
        yield cluster
