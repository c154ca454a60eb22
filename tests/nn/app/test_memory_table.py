"""nn/app/memory_table.py: the table adds up; --memory prints it, and allocates nothing."""

import dataclasses
import re

import numpy as np
import pytest

from nn.app.console import Console
from nn.app.memory_table import memory_table
from nn.app.options import Options
from nn.train.memory_needs import COLUMNS, Line, Needs
from nn.train.training import Training
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from train import train

SMALL = Options(hidden=(9, 7), epochs=1, batch=20, lr=0.1, momentum=0.0, val_fraction=0.1, device="cpu")


def test_a_table_adds_up():
    lines = [Line("layer 1", 1_000_000, 2_000_000, pinned=500_000), Line("batches", buffers=250_000)]
    text = memory_table(Needs(0, lines)).splitlines()
    assert text[0].split() == ["MB", *COLUMNS, "device", "pinned", "host"]
    assert text[-1].split() == ["total", "1.000", "2.000", "0.250", "3.250", "0.500"]


def test_memory_is_printed_and_nothing_is_trained_or_allocated(capsys, monkeypatch, tmp_path):
    """Not even a network that no machine has room for: the table comes before the error."""
    monkeypatch.setattr(Training, "begin", lambda *_: pytest.fail("trained"))
    monkeypatch.setattr(CpuDriver, "allocate", lambda *_: pytest.fail("allocated"))
    images, labels = np.ones((62, 3, 4), np.uint8), np.arange(62) % 3
    np.savez(tmp_path / "d.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    options = dataclasses.replace(SMALL, data=str(tmp_path / "d.npz"), memory=True)
    report = train(options, console=Console(speaking=True))
    text = capsys.readouterr().out
    assert memory_table(report.memory) in text and not report.epochs
    assert re.search(r"^the run needs 0\.0 MB on the host, which has \d+\.\d [MG]B free$", text, re.M)
    with pytest.raises(UserError, match=r"needs \d+\.\d GB on the host \(weights 64\.0 GB, .*which has"):
        train(dataclasses.replace(options, hidden=(40_000,) * 11), console=Console(speaking=True))
    assert " 64004.160 " in capsys.readouterr().out
