// For processors with AVX-512, its VNNI and bfloat16, and with AMX for int8 and bfloat16.

#define AMLP_MODULE _amx
#include "module.h"
