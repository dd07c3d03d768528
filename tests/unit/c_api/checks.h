// SPDX-License-Identifier: Apache-2.0
/* Checks for tests in C: a failed one is told with its place, and the program ends with 1. */
#ifndef TERRACE_TESTS_UNIT_C_API_CHECKS_H
#define TERRACE_TESTS_UNIT_C_API_CHECKS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terrace/terrace_c.h"

extern int failed_checks;

#define CHECK(condition)                                               \
  do {                                                                 \
    if (!(condition)) {                                                \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);  \
      fprintf(stderr, "  the last error: %s\n", terrace_error_text()); \
      ++failed_checks;                                                 \
    }                                                                  \
  } while (0)

/* What cannot go on without it. */
#define MUST(call)                                                                         \
  do {                                                                                     \
    if ((call) != TERRACE_OK) {                                                            \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, terrace_error_text()); \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

/* The call fails with that code, and its text has `part`. */
#define CHECK_FAILS(call, expected, part)                                                           \
  do {                                                                                              \
    const terrace_code got = (call);                                                                \
    if (got != (expected) || strstr(terrace_error_text(), (part)) == NULL) {                        \
      fprintf(stderr, "%s:%d: %s gave %s: %s\n", __FILE__, __LINE__, #call, terrace_code_name(got), \
              got == TERRACE_OK ? "" : terrace_error_text());                                       \
      ++failed_checks;                                                                              \
    }                                                                                               \
  } while (0)

void errors_tests(void);
void pool_tests(void);
void space_tests(void);
void dlpack_tests(void);
void checkpoint_tests(void);
void hbm_tests(void);
void kv_tests(void);

/* A pool of DDR alone. */
terrace_pool* ddr_pool(uint64_t ddr_bytes);

#endif
