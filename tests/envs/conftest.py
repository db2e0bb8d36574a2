"""What several test files of this folder share."""

import pytest

from experiments.bench.harness import peer_python
from experiments.reliability.minigrid_peer import Peer


@pytest.fixture(scope="module")
def peer():
    """A running minigrid, where `make peers` has put one."""
    python = peer_python("minigrid")
    if python is None:
        pytest.skip("minigrid is not installed; make peers")
    peer = Peer(python)
    yield peer
    peer.close()
