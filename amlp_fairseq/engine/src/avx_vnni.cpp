// For processors with AVX2 and AVX-VNNI.

#define AMLP_MODULE _avx_vnni
#include "module.h"
