"""Finds the fastest plan: rates of this machine (rates.py), time of a plan (cost.py), search (search.py)."""
