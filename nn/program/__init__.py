"""A training step as a list of operations (passes.py), and the rules that rewrite it (rewrite.py)."""
