"""The tests; a package, so that no other package of this name hides ``tests.mpi``."""
