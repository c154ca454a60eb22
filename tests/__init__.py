"""The tests; a package, so that no other package of this name hides ``tests.mpi``."""

import os

LONG = os.environ.get("PYRT_LONG", "0") != "0"
"""Whether those marked ``long`` run too, and others on more cases: ``make test-long``. A variable, so that
the ranks of a test know it as well."""
