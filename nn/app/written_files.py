"""The options whose file the run writes: which they are, and the check that each has a file of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nn.problem.option import flag
from pyrt.errors import UserError, shown

WRITTEN = ("save", "export", "json", "predictions", "save_plan", "timeline")
"""The options; any one of them may be standard output (nn/files/write.py)."""


def require(written: Mapping[str, Path]) -> None:
    """Raise UserError for a name that promises another format, or for two options with one file."""
    save, export = written.get("save"), written.get("export")
    if save and save.suffix.lower() == ".onnx":
        raise UserError(f"--save {shown(save)}: writes what --init reads; --export writes ONNX")
    if export and export.suffix.lower() in (".npz", ".safetensors", ".pyrtz"):
        raise UserError(f"--export {shown(export)}: writes ONNX: call it FILE.onnx, or --save it")
    files = written.values()
    if len(set(map(os.path.realpath, files))) < len(files):
        raise UserError(f"{', '.join(map(flag, WRITTEN))}: name a file of its own for each")
