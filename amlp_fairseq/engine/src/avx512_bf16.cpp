// For processors with AVX-512, its VNNI and bfloat16.

#define AMLP_MODULE _avx512_bf16
#include "module.h"
