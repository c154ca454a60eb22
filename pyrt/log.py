"""The log of pyrt and nn: a line before work that takes seconds, where that is not done in every run.

Nothing is printed unless somebody listens: a run's console does (nn/console.py), and any other program may,
by handlers of Python's ``logging`` for the logger ``pyrt``.
"""

import logging

log = logging.getLogger("pyrt")
