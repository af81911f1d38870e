// For processors with AVX-512 and its VNNI.

#define AMLP_MODULE _avx512_vnni
#include "module.h"
