// Kernel files may include it; the names of CUDA's that kernels use are always there (cuda_names.h).
#pragma once
