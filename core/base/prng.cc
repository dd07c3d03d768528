// SPDX-License-Identifier: Apache-2.0
#include "core/base/prng.h"

#include <sys/random.h>

#include "core/base/check.h"

namespace terrace {

uint64_t secure_random_u64() {
  uint64_t value = 0;
  const ssize_t n = ::getrandom(&value, sizeof(value), 0);
  TERRACE_CHECK(n == sizeof(value), "getrandom of 8 bytes never comes up short once the pool is ready");
  return value;
}

}  // namespace terrace
