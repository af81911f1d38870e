// For processors of any kind.

#define AMLP_MODULE _generic
#include "module.h"
