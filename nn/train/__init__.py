"""Training: the trainer, the loop (training.py), graphs (replay.py), losses, evaluation, checks, memory."""
