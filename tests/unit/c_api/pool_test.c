// SPDX-License-Identifier: Apache-2.0
/* Tensors of a pool: made, found, cut, guarded, moved as far as there is somewhere to move to. */
#include "tests/unit/c_api/checks.h"

#define MIB ((uint64_t)1 << 20)

terrace_pool* ddr_pool(uint64_t ddr_bytes) {
  struct terrace_pool_options options = {.size = sizeof options, .name = "c", .ddr_bytes = ddr_bytes};
  terrace_pool* pool = NULL;
  MUST(terrace_pool_make(&options, NULL, 0, &pool));
  return pool;
}

static terrace_tensor* matrix(terrace_pool* pool, const char* name, uint64_t rows, uint64_t columns) {
  const uint64_t dimensions[] = {rows, columns};
  struct terrace_tensor_spec spec = {.size = sizeof spec,
                                     .name = name,
                                     .dtype = TERRACE_DTYPE_I32,
                                     .rank = 2,
                                     .dimensions = dimensions,
                                     .hint = TERRACE_HINT_WEIGHTS,
                                     .flags = TERRACE_FLAG_READ_MOSTLY};
  terrace_tensor* tensor = NULL;
  MUST(terrace_pool_create(pool, &spec, &tensor));
  return tensor;
}

static void made_and_found(terrace_pool* pool) {
  terrace_tensor* made = matrix(pool, "layer.0", 4, 6);
  CHECK(strcmp(terrace_tensor_name(made), "layer.0") == 0);
  CHECK(terrace_tensor_dtype(made) == TERRACE_DTYPE_I32);
  CHECK(terrace_tensor_hint(made) == TERRACE_HINT_WEIGHTS);
  CHECK(terrace_tensor_flags(made) == TERRACE_FLAG_READ_MOSTLY);
  CHECK(terrace_tensor_rank(made) == 2 && terrace_tensor_shape(made)[1] == 6);
  CHECK(terrace_tensor_strides(made)[0] == 6 && terrace_tensor_strides(made)[1] == 1);
  CHECK(terrace_tensor_bytes(made) == 96 && !terrace_tensor_is_view(made));
  CHECK((uintptr_t)terrace_tensor_data(made) % 64 == 0);

  terrace_tensor* found = NULL;
  MUST(terrace_pool_find(pool, "layer.0", &found));
  CHECK(terrace_tensor_data(found) == terrace_tensor_data(made));
  terrace_tensor_free(made);
  ((int32_t*)terrace_tensor_data(found))[23] = 7; /* the other handle keeps it */
  terrace_tensor_free(found);
  CHECK_FAILS(terrace_pool_find(pool, "layer.0", &found), TERRACE_NOT_FOUND, "'layer.0'");
}

static void views_reach_their_elements(terrace_pool* pool) {
  terrace_tensor* made = matrix(pool, "m", 4, 6);
  int32_t* values = terrace_tensor_data(made);
  for (int32_t i = 0; i < 24; ++i) values[i] = i;
  terrace_tensor* columns = NULL;
  MUST(terrace_tensor_slice(made, 1, 2, 2, 3, &columns));
  CHECK(terrace_tensor_is_view(columns) && *(int32_t*)terrace_tensor_data(columns) == 2);
  CHECK(terrace_tensor_shape(columns)[1] == 2 && terrace_tensor_strides(columns)[1] == 3);
  const uint64_t all = 24;
  const int64_t back = -1;
  terrace_tensor* reversed = NULL;
  MUST(terrace_tensor_as_strided(made, 1, &all, &back, 23, &reversed));
  CHECK(*(int32_t*)terrace_tensor_data(reversed) == 23 && terrace_tensor_lowest(reversed) == values);
  CHECK_FAILS(terrace_tensor_slice(made, 2, 0, 1, 1, &columns), TERRACE_INVALID_ARGUMENT, "tensor 'm'");
  CHECK_FAILS(terrace_tensor_slice(made, 0, 3, 2, 1, &columns), TERRACE_INVALID_ARGUMENT, "outside dimension 0");
  CHECK_FAILS(terrace_tensor_as_strided(made, 1, &all, NULL, 0, &reversed), TERRACE_INVALID_ARGUMENT, "strides");
  CHECK_FAILS(terrace_tensor_as_strided(made, 9, &all, &back, 0, &reversed), TERRACE_INVALID_ARGUMENT, "rank");
  terrace_tensor_free(made);
  CHECK(*(int32_t*)terrace_tensor_data(reversed) == 23); /* a view keeps the memory */
  terrace_tensor_free(columns);
  terrace_tensor_free(reversed);
}

static void guards_count(terrace_pool* pool) {
  terrace_tensor* made = matrix(pool, "g", 4, 6);
  struct terrace_guard_options options = {.size = sizeof options, .hold = 1};
  terrace_guard *read = NULL, *write = NULL;
  MUST(terrace_tensor_read(made, &options, &read));
  MUST(terrace_tensor_write(made, NULL, &write));
  CHECK(terrace_guard_data(read) == terrace_tensor_data(made) && terrace_guard_bytes(read) == 96);
  CHECK(terrace_guard_writable(read) == NULL && terrace_guard_writable(write) == terrace_tensor_data(made));
  options.wait = 3;
  terrace_guard* none = NULL;
  CHECK_FAILS(terrace_tensor_read(made, &options, &none), TERRACE_INVALID_ARGUMENT, "3 is no wait");
  options.wait = 0;
  options.reserved = 1;
  CHECK_FAILS(terrace_tensor_read(made, &options, &none), TERRACE_VERSION_MISMATCH, "reserved");
  CHECK(none == NULL);
  terrace_tensor_free(made); /* the guards keep it */
  memset(terrace_guard_writable(write), 1, terrace_guard_bytes(write));
  terrace_guard_free(read);
  terrace_guard_free(write);

  made = matrix(pool, "h", 1, 1);
  MUST(terrace_tensor_read(made, NULL, &read));
  struct terrace_tensor_statistics statistics = {.size = sizeof statistics};
  MUST(terrace_tensor_get_statistics(made, &statistics));
  CHECK(statistics.reads == 1 && statistics.writes == 0 && statistics.pins == 0);
  terrace_guard_free(read);
  terrace_tensor_free(made);
}

static void tiers_are_told_and_asked(terrace_pool* pool) {
  terrace_tensor* made = matrix(pool, "t", 512, 1024);
  uint64_t ddr = 0, cxl = 1;
  MUST(terrace_tensor_residency(made, &ddr, &cxl));
  CHECK(ddr == 2 * MIB && cxl == 0);
  terrace_move* move = NULL;
  MUST(terrace_tensor_pin(made, TERRACE_TIER_DDR, &move));
  MUST(terrace_move_wait(move, (uint64_t)30 * 1000 * 1000 * 1000));
  CHECK(terrace_move_done(move) && terrace_move_bytes_there(move) == 2 * MIB);
  terrace_move_free(move);
  struct terrace_pool_statistics statistics = {.size = sizeof statistics};
  MUST(terrace_pool_get_statistics(pool, &statistics));
  CHECK(statistics.pinned_bytes >= 2 * MIB && statistics.tensors == 1);
  MUST(terrace_tensor_unpin(made));
  CHECK_FAILS(terrace_tensor_unpin(made), TERRACE_INVALID_ARGUMENT, "'t'");
  MUST(terrace_tensor_prefetch(made, NULL));
  CHECK_FAILS(terrace_tensor_move_to(made, 3, NULL), TERRACE_INVALID_ARGUMENT, "3 is no tier");
  CHECK_FAILS(terrace_tensor_pin(made, -1, NULL), TERRACE_INVALID_ARGUMENT, "-1 is no tier");

  struct terrace_advice advice = {.size = sizeof advice, .set_hint = 1, .hint = TERRACE_HINT_KV_CACHE};
  MUST(terrace_tensor_advise(made, &advice));
  CHECK(terrace_tensor_hint(made) == TERRACE_HINT_KV_CACHE);
  CHECK(terrace_tensor_flags(made) == TERRACE_FLAG_READ_MOSTLY); /* not set: as it was */
  advice.hint = 99;
  CHECK_FAILS(terrace_tensor_advise(made, &advice), TERRACE_INVALID_ARGUMENT, "99 is no hint");
  advice = (struct terrace_advice){.size = sizeof advice, .set_flags = 1, .flags = 8};
  CHECK_FAILS(terrace_tensor_advise(made, &advice), TERRACE_INVALID_ARGUMENT, "flags");
  terrace_tensor_free(made);
  MUST(terrace_pool_step(pool));
  MUST(terrace_pool_set_copy_budget(pool, TERRACE_NO_BOUND));
}

static void wrong_specs_are_refused(terrace_pool* pool) {
  const uint64_t dimensions[] = {64 * MIB};
  struct terrace_tensor_spec spec = {
      .size = sizeof spec, .name = "big", .dtype = TERRACE_DTYPE_U8, .rank = 1, .dimensions = dimensions};
  terrace_tensor* tensor = NULL;
  CHECK_FAILS(terrace_pool_create(pool, &spec, &tensor), TERRACE_CAPACITY_EXHAUSTED, "'big'");
  CHECK(strstr(terrace_error_text(), "short") != NULL);
  spec.dtype = 23;
  CHECK_FAILS(terrace_pool_create(pool, &spec, &tensor), TERRACE_INVALID_ARGUMENT, "23 is no dtype");
  spec.dtype = 256 + TERRACE_DTYPE_U8;
  CHECK_FAILS(terrace_pool_create(pool, &spec, &tensor), TERRACE_INVALID_ARGUMENT, "no dtype");
  spec.dtype = TERRACE_DTYPE_U8;
  spec.hint = -1;
  CHECK_FAILS(terrace_pool_create(pool, &spec, &tensor), TERRACE_INVALID_ARGUMENT, "-1 is no hint");
  spec.hint = 0;
  spec.flags = 256;
  CHECK_FAILS(terrace_pool_create(pool, &spec, &tensor), TERRACE_INVALID_ARGUMENT, "flags");
  spec.flags = 0;
  spec.dimensions = NULL;
  CHECK_FAILS(terrace_pool_create(pool, &spec, &tensor), TERRACE_INVALID_ARGUMENT, "dimensions is NULL");
  spec.rank = 9;
  spec.dimensions = dimensions;
  CHECK_FAILS(terrace_pool_create(pool, &spec, &tensor), TERRACE_INVALID_ARGUMENT, "rank");
  CHECK_FAILS(terrace_pool_create(pool, NULL, &tensor), TERRACE_INVALID_ARGUMENT, "spec is NULL");
  CHECK(tensor == NULL);
  struct terrace_pool_options options = {.size = sizeof options, .ddr_bytes = 4 * MIB, .policy = "fastest"};
  terrace_pool* other = NULL;
  CHECK_FAILS(terrace_pool_make(&options, NULL, 0, &other), TERRACE_NOT_FOUND, "fastest");
  options.policy = NULL;
  terrace_lease* none = NULL;
  CHECK_FAILS(terrace_pool_make(&options, &none, 1, &other), TERRACE_INVALID_ARGUMENT, "lease 0 is NULL");
  options.guard_wait = 3;
  CHECK_FAILS(terrace_pool_make(&options, NULL, 0, &other), TERRACE_INVALID_ARGUMENT, "3 is no wait");
}

void pool_tests(void) {
  terrace_pool* pool = ddr_pool(8 * MIB);
  made_and_found(pool);
  views_reach_their_elements(pool);
  guards_count(pool);
  tiers_are_told_and_asked(pool);
  wrong_specs_are_refused(pool);
  terrace_tensor* last = matrix(pool, "last", 4, 6);
  terrace_pool_free(pool);
  memset(terrace_tensor_data(last), 1, 96); /* a tensor outlives its pool */
  terrace_tensor_free(last);
}
