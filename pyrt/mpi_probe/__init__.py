"""Finds out whether this MPI takes device buffers here: checks.py tries it in a job, libraries.py decides."""
