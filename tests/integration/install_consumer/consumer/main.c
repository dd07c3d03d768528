// SPDX-License-Identifier: Apache-2.0
/* Uses the installed library from C; exits with 0 when each call answers as documented. */
#include <terrace/kv_c.h>
#include <terrace/terrace_c.h>

#include <string.h>

int main(void) {
  struct terrace_session_options nobody = {.size = sizeof nobody, .socket_path = "/nonexistent/terraced.sock"};
  terrace_session* session = NULL;
  if (terrace_session_connect(&nobody, &session) != TERRACE_UNAVAILABLE) return 1;
  if (strstr(terrace_error_text(), "unavailable") == NULL) return 2;

  struct terrace_pool_options options = {.size = sizeof options, .ddr_bytes = 4 << 20};
  terrace_pool* pool = NULL;
  if (terrace_pool_make(&options, NULL, 0, &pool) != TERRACE_OK) return 3;
  const uint64_t dimensions[] = {16, 16};
  struct terrace_tensor_spec spec = {
      .size = sizeof spec, .name = "t", .dtype = TERRACE_DTYPE_F32, .rank = 2, .dimensions = dimensions};
  terrace_tensor* tensor = NULL;
  if (terrace_pool_create(pool, &spec, &tensor) != TERRACE_OK) return 4;
  terrace_pool_free(pool);
  memset(terrace_tensor_data(tensor), 1, terrace_tensor_bytes(tensor));
  terrace_tensor_free(tensor);
  return 0;
}
