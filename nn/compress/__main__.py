"""Makes a trained network light: prune and train again, let weights share values, encode what is left::

    python -m nn.compress run.npz --data embedded --out run.pyrtz
    python -m nn.compress run.npz --prune 0.92 --rounds 4 --retrain-epochs 20 --bits 6,5 --out run.pyrtz
    python -m nn.compress run.npz --sensitivity sensitivity.png
    python train.py --evaluate --init run.pyrtz

The steps are those of Han, Mao and Dally (2016); docs/explain/compression.md has them one by one.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyrt.errors import UserError, shown
from pyrt.job import Job, run
from pyrt.phases import Phases

if TYPE_CHECKING:  # at run time only once MPI has started: they load NumPy
    from pathlib import Path

    from nn.app.console import Console
    from nn.compress.options import CommandLine
    from nn.compress.retraining import Parameters, Retraining
    from nn.compress.steps import Step
    from pyrt.runtime import Runtime

VERSION = 1
"""The version of the JSON file's layout."""


def main(job: Job) -> int:
    """Run the command line. Every rank trains; rank 0 reads, writes and prints."""
    from nn.app import load, start
    from nn.app.console import Console
    from nn.compress.options import parse, with_file
    from nn.compress.retraining import Retraining
    from nn.files.write import STDOUT

    with job.agree():
        line = parse(sys.argv[1:])
    console = Console(speaking=job.rank == 0, quiet=line.options.quiet)
    with contextlib.ExitStack() as stack:
        if line.json == STDOUT:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        start.require_alike(line.options, job)
        require_files(line, job)
        line = with_file(line, job)
        reading = load.begin(line.options, job)

        def open_runtime() -> AbstractContextManager[Runtime]:
            return start.open_runtime(line.options, job, Phases(time.perf_counter()), console)

        with open_runtime() as runtime:
            data = load.finish(reading, line.options, runtime, console)
        with job.agree():
            if data.test_images is None:
                raise UserError(
                    f"--data: {data.name} has no test images to score with: give data that has them"
                )
            network = line.options.make_network(data.image_shape, data.classes)
        compress(line, Retraining(line.options, network, data, job, open_runtime), console)
    return 0


def require_files(line: CommandLine, job: Job) -> None:
    """Raise UserError on all ranks where a file cannot be written, or its format is unknown. Collective."""
    from nn.files import parameters
    from nn.files.write import require_writable

    with job.agree():
        if job.rank > 0:
            return
        assert line.options.init is not None
        parameters.require_format("FILE", line.options.init)
        for option, path in (("--out", line.out), ("--sensitivity", line.sensitivity), ("--json", line.json)):
            if path is not None:
                require_writable(option, path)
        if line.out is not None:
            parameters.require_format("--out", line.out)


def compress(line: CommandLine, retraining: Retraining, console: Console) -> None:
    """Do what the command line says. Collective."""
    from nn.compress.sensitivity import draw, scan
    from nn.files import parameters
    from nn.files.write import write_whole

    job, network = retraining.job, retraining.network
    with job.agree():
        assert line.options.init is not None
        found = parameters.load(line.options.init, network, "float32") if job.rank == 0 else None
    trained = job.comm.bcast(found)
    result: dict[str, Any] = {"version": VERSION, "network": network.text, "data": retraining.data.name}
    if line.sensitivity is not None:
        sensitivity = scan(network, trained, retraining)
        console.say(f"{sensitivity.table(console.width)}\n")
        result["sensitivity"] = asdict(sensitivity)
        with job.agree():
            if job.rank == 0:
                draw(sensitivity, line.sensitivity)
    if line.out is not None:
        result |= write_light(line, trained, retraining, console)
    with job.agree():
        if job.rank == 0 and line.json is not None:
            text = f"{json.dumps(result, indent=1)}\n"
            write_whole("--json", line.json, lambda file: file.write(text.encode()))


def write_light(
    line: CommandLine, trained: Parameters, retraining: Retraining, console: Console
) -> dict[str, Any]:
    """Compress the network, write it and print what it weighs; return the same for JSON. Collective."""
    from nn.app.network_of_file import NAMES
    from nn.compress.encoded import encoded
    from nn.compress.few_bits import Way, few_bits, ways_table
    from nn.compress.rates import rates, table
    from nn.files.pyrtz import save_compressed

    assert line.out is not None
    steps, job = all_steps(line, trained, retraining, console), retraining.job
    bits = line.wanted.bits_of(retraining.network)
    light = encoded(steps[-1].parameters, bits, line.wanted.index_bits)
    # What `train.py --evaluate` needs: all that a run was given would be a part of a small file.
    metadata = {"options": {name: getattr(line.options, name) for name in ("dtype", *NAMES)}}
    with job.agree():
        if job.rank == 0:
            save_compressed("--out", line.out, light, metadata)
            progress_of(line).unlink(missing_ok=True)
        found = rates(light, metadata)
    console.say(f"\n{table(found, console.width)}\n")
    total = found.total
    ways = [
        Way("float32", total.dense_bytes, steps[0].accuracy),
        Way("compressed", total.file_bytes_huffman, steps[-1].accuracy),
        *few_bits(trained, retraining),
    ]
    console.say(f"{ways_table(ways)}\n")
    before, after = (100 * (1 - step.accuracy) for step in (steps[0], steps[-1]))
    smaller = total.dense_bytes / total.file_bytes_huffman
    console.tell(
        f"{shown(line.out)}: {total.file_bytes_huffman} bytes, 1/{smaller:.1f} of float32's; "
        f"error {before:.2f}% before, {after:.2f}% after"
    )
    told = [{"name": step.name, "accuracy": step.accuracy, "loss": step.loss} for step in steps]
    return {"steps": told, "rates": asdict(found), "ways": [asdict(way) for way in ways]}


def all_steps(line: CommandLine, trained: Parameters, retraining: Retraining, console: Console) -> list[Step]:
    """Go through all steps, from the newest that is kept where the run goes on. Collective."""
    from nn.compress.steps import Compression, Progress, Step
    from nn.files.digest import digest

    job = retraining.job
    with job.agree():
        compression = Compression(line.wanted, retraining)
        progress = Progress(progress_of(line), {**line.told, "network": digest(trained.values())})
        kept = progress.read(retraining) if job.rank == 0 and line.resume else []
    steps: list[Step] = job.comm.bcast(kept)
    if not steps:
        with retraining.scoring() as score:
            steps = [Step.of("as trained", trained, score(trained))]
    for step in steps:
        console.say(step.line)
    for make in compression.steps[len(steps) - 1 :]:
        steps.append(make(steps[-1].parameters))
        console.say(steps[-1].line)
        with job.agree():
            if job.rank == 0:
                progress.keep(steps)
    return steps


def progress_of(line: CommandLine) -> Path:
    """Name the file that keeps what an interrupted run has done."""
    assert line.out is not None
    return line.out.with_name(f"{line.out.name}.progress.npz")


if __name__ == "__main__":
    run(main)
