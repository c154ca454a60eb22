"""What a network is: layers, loss, initial values; the same in NumPy (reference.py)."""
