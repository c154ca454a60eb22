"""The parts of train.py: options, start, data, pipeline, report, memory table, console."""
