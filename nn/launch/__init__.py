"""From operations to kernel launches, a file for each kind; each has its NumPy function beside it."""
