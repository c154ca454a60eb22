"""Where files are kept between runs: the user's cache directory, or ``$PYRT_CACHE_DIR``."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

VARIABLE = "PYRT_CACHE_DIR"


def cache_folder(name: str) -> Path:
    """The cache's folder of that name; not made here."""
    root = os.environ.get(VARIABLE) or platformdirs.user_cache_dir("pyrt")
    return Path(root).expanduser() / name
