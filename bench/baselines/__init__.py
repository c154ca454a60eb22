"""The reference training in other frameworks, as one would write it well there; each file is a program.

    python3 bench/baselines/torch_step.py --batch 3000 750 --math float32 tf32
    python3 bench/baselines/jax_step.py --gpus 4

They print a JSON line for each way of running it (`work.Line`), and exit with 2 where the framework or a
GPU is missing, with 1 where the results are wrong.
"""
