"""The network: layers, loss, initial values; and its equations in NumPy (reference.py)."""
