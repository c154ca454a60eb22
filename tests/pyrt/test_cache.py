"""pyrt/cache.py: where files are kept between runs."""

from pathlib import Path

from pyrt.cache import cache_folder


def test_the_users_own_cache_unless_it_is_moved(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("PYRT_CACHE_DIR", "")
    assert cache_folder("mnist") == tmp_path / ".cache" / "pyrt" / "mnist"
    monkeypatch.setenv("PYRT_CACHE_DIR", "~/moved")
    assert cache_folder("kernels") == Path(tmp_path) / "moved" / "kernels"
