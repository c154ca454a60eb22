"""The log of pyrt and nn: a line before work that takes seconds, where that is not done in every run.

Nothing is printed unless a handler of Python's ``logging`` listens to the logger ``pyrt``: a run's console
does (nn/app/console.py), and any program may.
"""

import logging

log = logging.getLogger("pyrt")
