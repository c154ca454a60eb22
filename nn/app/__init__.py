"""What train.py is made of: options, start, data, pipeline, report, memory table, console."""
