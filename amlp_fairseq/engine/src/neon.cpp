// For processors of aarch64.

#define AMLP_NEON
#define AMLP_MODULE _neon
#include "module.h"
