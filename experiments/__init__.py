"""The studies that a report needs, each a command: ``python3 -m experiments [STUDY ..]``, or ``make report``.

A study is a module of this folder with what `experiments.study.Study` asks for. One process (``__main__``)
goes over their points, keeps the results, draws the figures and writes the page; it starts no MPI and no
device. What is measured runs in jobs of its own (``jobs``), whose ranks run ``worker``.
"""

from __future__ import annotations

STUDIES = (
    *("correctness", "convergence", "images", "compression", "profile", "roofline", "scaling", "plans"),
    *("gemm", "exchange", "asynchronous"),
)
"""In the order of the page."""
