"""bench: measured comparisons, on the machine they run on; `make bench` runs them all.

============= =================================================================================
``gemm``      every version of the matrix product against cuBLAS
``tiles``     every way of cutting a product for tensor cores, beside what the choice of tiles expects
``kernels``   each kernel of a training step, beside what arithmetic and memory would allow
``step``      a training step against PyTorch and JAX
``latency``     inference from host to host against PyTorch, for one image and for many
``sparse``    products of pruned layers that share their weights, against dense ones and cuSPARSE
``timing``    how times are taken
``cublas``    cuBLAS's products on the project's arrays, through PyTorch or CuPy
``program``   what the command lines share
``baselines`` the same training, written in PyTorch and in JAX; programs of their own
============= =================================================================================

Results are checked before they are timed. Being slow fails nothing, and what is not installed is said and
left out; wrong results end with exit code 1.
"""
