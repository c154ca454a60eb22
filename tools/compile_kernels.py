"""Compile every kernel for all its architectures under every combination of its constants; needs no GPU.

    compile_kernels.py [FILE.cu ...]      all of kernels/ by default

Warnings are errors, and so are registers spilled to memory and what ptxas calls a performance loss: products
on tensor cores that wait for each other. Prints a line per file; exits 1 if anything failed.
"""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from pyrt.driver.nvcc import options
from pyrt.kernels import KERNELS, all_constants, architectures, flatten, with_constants

ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")
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
    source = with_constants(flatten(file, [KERNELS]), constants)
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
    files = [Path(name).resolve() for name in arguments] or sorted(KERNELS.glob("*.cu"))
    if not files:
        print(f"kernels: error: no .cu file in {KERNELS}", file=sys.stderr)
        return 1
    jobs = [
        (file, constants, architecture)
        for file in files
        for constants in all_constants(flatten(file, [KERNELS]))
        for architecture in architectures(file.read_text()) or ARCHITECTURES
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda job: compile_one(*job), jobs))

    rows = []
    for file in files:
        of_file = [result for result in results if result.file == file]
        failed = sum(bool(result.errors) for result in of_file)
        rows.append(
            {
                "file": file.name,
                "variants": len({result.variant for result in of_file}),
                "architectures": " ".join(dict.fromkeys(result.architecture for result in of_file)),
                "registers": max(result.registers for result in of_file),
                "spilled bytes": max(result.spilled for result in of_file),
                "failed": f"{failed} of {len(of_file)}" if failed else "-",
            }
        )
    print(tabulate(rows, headers="keys"))

    bad = [result for result in results if result.errors or result.spilled]
    for file in dict.fromkeys(result.file for result in bad):
        # The first of each file will do: the others mostly say the same.
        first = next(result for result in bad if result.file == file)
        what = " ".join(filter(None, (file.name, first.variant, first.architecture)))
        message = first.errors or f"{first.spilled} bytes of registers spilled to memory"
        print(f"\nkernels: error: {what}:\n{message}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
