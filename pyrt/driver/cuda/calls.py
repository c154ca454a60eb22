"""Calls of cuda-bindings: their errors are exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pycuda.driver as cuda
from cuda.bindings import driver as bindings

from pyrt.errors import UserError


def call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """Return the results of a cuda-bindings call without its status; RuntimeError if that is an error.

    UserError where that is want of memory.
    """
    status, *values = function(*arguments)
    if status == bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise no_memory(f"{function.__name__} finds no memory")
    if status != bindings.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{function.__name__}: {status.name}")
    return values[0] if values else None


def no_memory(what: str) -> UserError:
    """Return the UserError for want of device memory, in the current context."""
    try:
        free, total = (f"{nbytes / 1e6:.0f}" for nbytes in cuda.mem_get_info())
    except cuda.Error:  # as of a context that there was no memory for
        free = total = "?"
    return UserError(
        f"{what}, {free} of {total} MB free: use a smaller --batch or --hidden, or more GPUs; --memory says "
        "what takes it"
    )
