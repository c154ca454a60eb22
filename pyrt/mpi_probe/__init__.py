"""Does this MPI take device buffers, here? libraries.py decides, checks.py tries it in a job of its own."""
