// For processors with AVX2 and FMA.

#define AMLP_MODULE _avx2
#include "module.h"
