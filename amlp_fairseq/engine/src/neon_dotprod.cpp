// For processors of aarch64 with dot products of int8.

#define AMLP_NEON
#define AMLP_MODULE _neon_dotprod
#include "module.h"
