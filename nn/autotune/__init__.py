"""Which plan is fastest: rates of this machine (rates.py), time of a plan (cost.py), search (search.py)."""
