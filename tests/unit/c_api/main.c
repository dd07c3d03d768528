// SPDX-License-Identifier: Apache-2.0
/* The C interface, used from C. */
#include "tests/unit/c_api/checks.h"

int failed_checks = 0;

static void run(const char* name, void (*tests)(void)) {
  const int before = failed_checks;
  tests();
  printf("%s: %s\n", name, failed_checks == before ? "ok" : "FAILED");
}

int main(void) {
  run("errors and options", errors_tests);
  run("pools and tensors", pool_tests);
  run("tensor spaces", space_tests);
  run("KV spaces", kv_tests);
  run("DLPack", dlpack_tests);
  run("checkpoints", checkpoint_tests);
  run("tier hbm", hbm_tests);
  return failed_checks == 0 ? 0 : 1;
}
