"""Fixtures of the tests of parameter files, whatever their format."""

import pytest

from nn.model.initial import initial_values
from pyrt.errors import UserError
from tests.nn.files.made import NETWORK, load


@pytest.fixture
def arrays():
    return initial_values(NETWORK, "float64", 0)


@pytest.fixture
def refused(file):
    """Check that the file is refused in one line that names the option, the file and all of ``words``."""

    def check(*words, dtype="float64"):
        with pytest.raises(UserError) as caught:
            load(file, dtype)
        message = str(caught.value)
        assert message.startswith(f"--init {file}: ")
        assert message.isprintable() and len(message) < 500
        assert all(word in message for word in words), message

    return check
