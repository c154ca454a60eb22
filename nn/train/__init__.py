"""Training: the trainer, loops (step_loop.py, legs.py), graphs (replay.py), losses, evaluation, checks."""
