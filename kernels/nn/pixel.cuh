// What a pixel may be. Needs PIXEL.
#pragma once

typedef unsigned char uint8;
typedef float float32;
typedef double float64;
typedef PIXEL pixel;
