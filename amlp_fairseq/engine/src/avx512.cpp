// For processors with AVX-512 F, BW, DQ and VL.

#define AMLP_MODULE _avx512
#include "module.h"
