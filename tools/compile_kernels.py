"""Compile every kernel for all its architectures; needs no GPU.

Compiles for the newest architecture as many combinations of a kernel's constants as contain every value of
each line of them, or every combination where PYRT_LONG=1 is set. The older ones, whose code differs in a
few places, take every value of a file, and any activation: it is a function that a kernel calls whatever
its other constants are. Of two older ones with the same code the newer one is left out.

    compile_kernels.py [FILE.cu ...]      all of kernels/ by default

Warnings are errors, and so are registers spilled to memory and what ptxas calls a performance loss: products
on tensor cores that wait for each other. Compiles on all cores, and prints a line for each file as soon as
all of it is compiled; exits 1 if anything failed.
"""

import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from pyrt.driver.nvcc import options
from pyrt.kernels import KERNELS, architectures, constants_by_line, flatten, with_constants

ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")
COLUMNS = "{:22s} {:>8s} {:18s} {:>9s} {:>7s} {:>7s} {:>3s}"
"""The format of a line."""

CALLED = "ACTIVATION"
"""The constant of which older architectures take any value."""

LONG = os.environ.get("PYRT_LONG", "0") != "0"

FLAGS = ("-cubin", "-Werror", "all-warnings", "-Xptxas", "-v")
"""Beside those with which kernels run."""


@dataclass(frozen=True)
class Compiled:
    """One file under one set of constants for one architecture."""

    file: Path
    variant: str
    architecture: str
    registers: int
    spilled: int  # bytes stored and loaded
    errors: str  # nvcc's words, empty where all is well


@cache
def nvcc_version() -> str:
    return subprocess.check_output(["nvcc", "--version"], text=True)


def compile_one(file: Path, constants: dict[str, str], architecture: str) -> Compiled:
    source = with_constants(flatten(file, [KERNELS], constants), constants)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file.name
        path.write_text(source)
        flags = *options(nvcc_version()), *FLAGS, f"-arch={architecture}"
        done = subprocess.run(["nvcc", *flags, "-o", f"{path}.cubin", path], capture_output=True, text=True)
    output = done.stdout + done.stderr
    losses = re.findall(r"^.*Potential Performance Loss.*$", output, re.MULTILINE)
    return Compiled(
        file,
        " ".join(f"{name}={value}" for name, value in constants.items()),
        architecture,
        max(map(int, re.findall(r"Used (\d+) registers", output)), default=0),
        sum(map(int, re.findall(r"(\d+) bytes spill", output))),
        "\n".join(losses) if done.returncode == 0 else output.strip(),
    )


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    files = [Path(name).resolve() for name in arguments] or sorted(KERNELS.rglob("*.cu"))
    missing = [file for file in files or [KERNELS / "*.cu"] if not file.is_file()]
    if missing:
        print(f"kernels: error: {missing[0]} is not there: name .cu files of kernels/", file=sys.stderr)
        return 2
    jobs = {file: jobs_of(file) for file in dict.fromkeys(files)}
    count, cores, start = sum(map(len, jobs.values())), len(os.sched_getaffinity(0)), time.perf_counter()
    print(f"{count} compilations of {len(jobs)} files, {cores} at a time", flush=True)
    print(COLUMNS.format("file", "variants", "architectures", "registers", "spilled", "failed", "s"))
    all_well = True
    with ThreadPoolExecutor(cores) as pool:
        compiling = pool.map(lambda job: compile_one(*job), (job for each in jobs.values() for job in each))
        results = iter(tqdm(compiling, total=count, leave=False, disable=None))
        for file in jobs:
            of_file = list(islice(results, len(jobs[file])))
            all_well &= tell(file, of_file, time.perf_counter() - start)
    return 0 if all_well else 1


def jobs_of(file: Path) -> list[tuple[Path, dict[str, str], str]]:
    """Return what `compile_one` is to be given for all of a file."""
    *older, newest = architectures(file.read_text()) or ARCHITECTURES
    lines = constants_by_line(file.read_text())
    together = list(itertools.chain(*lines))
    values = {name for constants in together for name in constants}
    return [
        *(
            (file, constants, newest)
            for line in lines
            for constants in (line if LONG else covering(line, values))
        ),
        *(
            (file, constants, one)
            for one in different(older, flatten(file, [KERNELS], together[0]))
            for constants in covering(together, values - {CALLED})
        ),
    ]


def different(names: Sequence[str], source: str) -> list[str]:
    """Those architectures for which this source has other code than for the one before."""
    asked = sorted({int(number) for number in re.findall(r"__CUDA_ARCH__\s*(?:>=|<)\s*(\d+)", source)})
    codes = {name: bisect(asked, 10 * int(re.sub(r"\D", "", name))) for name in reversed(names)}
    return [name for name in names if name in {code: name for name, code in codes.items()}.values()]


def covering(combinations: Sequence[dict[str, str]], names: set[str]) -> list[dict[str, str]]:
    """Return a few of the combinations, in which every value of these constants is."""

    def values(constants: dict[str, str]) -> set[tuple[str, str]]:
        return {item for item in constants.items() if item[0] in names}

    missing = {value for constants in combinations for value in values(constants)}
    chosen = []
    while missing:
        best = max(combinations, key=lambda constants: len(missing & values(constants)))
        chosen.append(best)
        missing -= values(best)
    return chosen or list(combinations[:1])


def name_of(file: Path) -> str:
    """The name of a kernel file, from kernels/ on."""
    return str(file.relative_to(KERNELS)) if file.is_relative_to(KERNELS) else file.name


def tell(file: Path, results: Sequence[Compiled], seconds: float) -> bool:
    """Print the line of a file, and what is wrong with it; whether all is well."""
    bad = [result for result in results if result.errors or result.spilled]
    failed = sum(bool(result.errors) for result in results)
    line = COLUMNS.format(
        name_of(file),
        str(len({result.variant for result in results})),
        " ".join(sorted({result.architecture for result in results})),
        str(max(result.registers for result in results)),
        str(max(result.spilled for result in results)),
        f"{failed} of {len(results)}" if failed else "-",
        f"{seconds:.0f}",
    )
    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()
    for first in bad[:1]:  # the others mostly say the same
        what = " ".join(filter(None, (name_of(file), first.variant, first.architecture)))
        message = first.errors or f"{first.spilled} bytes of registers spilled to memory"
        tqdm.write(f"\nkernels: error: {what}:\n{message}\n", file=sys.stderr)
    return not bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
