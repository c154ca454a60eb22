"""The network of the tests of parameter files, and how they load its parameters."""

import pytest

from nn.files import parameters
from nn.model.network import Network
from pyrt.errors import UserError

NETWORK = Network.dense((6, 5, 3), "sigmoid", "softmax")


def load(file, dtype="float64"):
    return parameters.load(file, NETWORK, dtype)


def require_failing_save_leaves_the_old_file(file, module, save, option, monkeypatch):
    """Save by a format's module on a disk that gets full half-way: an error, and nothing else changes."""
    old = file.read_bytes()

    def fail(stream, arrays, run):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write", fail)
    with pytest.raises(UserError, match=rf"{option} .*No space left"):
        save()
    assert file.read_bytes() == old
    assert list(file.parent.iterdir()) == [file]
