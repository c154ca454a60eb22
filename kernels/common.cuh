// What every kernel shares. REAL (float or double) is defined by whoever compiles the file.
#pragma once

typedef REAL real;
typedef long long offset;  // row * leading dimension can pass 2^31

const int WARP = 32;
