// SPDX-License-Identifier: Apache-2.0
/* Tier hbm from C, on an emulated device. */
#include "tests/unit/c_api/checks.h"

#define MIB ((uint64_t)1 << 20)

static terrace_tensor* bytes_of(terrace_pool* pool, const char* name) {
  const uint64_t dimensions[] = {MIB};
  struct terrace_tensor_spec spec = {
      .size = sizeof spec, .name = name, .dtype = TERRACE_DTYPE_U8, .rank = 1, .dimensions = dimensions};
  terrace_tensor* tensor = NULL;
  MUST(terrace_pool_create(pool, &spec, &tensor));
  terrace_guard* guard = NULL;
  MUST(terrace_tensor_write(tensor, NULL, &guard));
  memset(terrace_guard_writable(guard), 1, MIB);
  terrace_guard_free(guard);
  return tensor;
}

static terrace_pool* device_pool(uint64_t hbm_bytes) {
  struct terrace_emulated_options of = {.size = sizeof of, .capacity_bytes = 8 * MIB};
  terrace_device* device = NULL;
  MUST(terrace_device_make_emulated(&of, &device));
  CHECK(terrace_device_is_emulated(device));
  CHECK(strstr(terrace_device_description(device), "emulated") != NULL);
  struct terrace_pool_options options = {
      .size = sizeof options, .ddr_bytes = 8 * MIB, .device = device, .hbm_bytes = hbm_bytes};
  terrace_pool* pool = NULL;
  MUST(terrace_pool_make(&options, NULL, 0, &pool));
  terrace_device_free(device); /* the pool keeps it */
  return pool;
}

static void told_of_a_device(void) {
  struct terrace_emulated_options of = {.size = sizeof of, .capacity_bytes = 8 * MIB};
  terrace_device* device = NULL;
  MUST(terrace_device_make_emulated(&of, &device));
  struct terrace_device_info info;
  memset(&info, 0xff, sizeof info);
  info.size = sizeof info;
  MUST(terrace_device_get_info(device, &info));
  CHECK(info.kind == TERRACE_DEVICE_EMULATED && info.ordinal == 0 && info.driver_version == 0);
  CHECK(info.capacity_bytes == 8 * MIB && info.reserved == 0);
  CHECK(strcmp(info.name, "emulated device") == 0);
  CHECK(strcmp(info.description, terrace_device_description(device)) == 0);

  struct terrace_device_use use;
  memset(&use, 0xff, sizeof use);
  use.size = sizeof use;
  MUST(terrace_device_get_use(device, &use));
  CHECK(use.capacity_bytes == 8 * MIB && use.free_bytes == 8 * MIB && use.allocated_bytes == 0);
  struct terrace_pool_options options = {
      .size = sizeof options, .ddr_bytes = 8 * MIB, .device = device, .hbm_bytes = 2 * MIB};
  terrace_pool* pool = NULL;
  MUST(terrace_pool_make(&options, NULL, 0, &pool));
  terrace_tensor* a = bytes_of(pool, "a");
  terrace_device_guard* guard = NULL;
  MUST(terrace_tensor_device_read(a, NULL, &guard));
  MUST(terrace_device_get_use(device, &use));
  CHECK(use.capacity_bytes == 8 * MIB && use.free_bytes == 7 * MIB && use.allocated_bytes == MIB);
  terrace_device_guard_free(guard);
  terrace_tensor_free(a);
  terrace_pool_free(pool);

  struct terrace_device_use older = {.size = offsetof(struct terrace_device_use, allocated_bytes)};
  older.allocated_bytes = 7;
  MUST(terrace_device_get_use(device, &older));
  CHECK(older.free_bytes == 8 * MIB && older.allocated_bytes == 7); /* behind what it has */
  older.size = 3;
  CHECK_FAILS(terrace_device_get_use(device, &older), TERRACE_INVALID_ARGUMENT, "size is 3");
  CHECK_FAILS(terrace_device_get_info(NULL, &info), TERRACE_INVALID_ARGUMENT, "device is NULL");
  CHECK_FAILS(terrace_device_get_use(device, NULL), TERRACE_INVALID_ARGUMENT, "use is NULL");
  terrace_device_free(device);
}

static void used_on_both_sides(void) {
  terrace_pool* pool = device_pool(2 * MIB);
  terrace_tensor* a = bytes_of(pool, "a");
  terrace_move* move = NULL;
  MUST(terrace_tensor_prefetch_to(a, TERRACE_TIER_HBM, &move));
  MUST(terrace_move_wait(move, UINT64_MAX));
  terrace_move_free(move);
  terrace_device_guard* guard = NULL;
  MUST(terrace_tensor_device_read(a, NULL, &guard));
  const uint64_t address = terrace_device_guard_address(guard);
  CHECK(terrace_device_guard_bytes(guard) == MIB && *(const unsigned char*)(uintptr_t)address == 1);
  terrace_guard* host = NULL;
  CHECK_FAILS(terrace_tensor_write(a, NULL, &host), TERRACE_BUSY, "'a'");
  terrace_device_guard_free(guard);

  struct terrace_device_guard_options all = {.size = sizeof all, .overwrite = 1};
  MUST(terrace_tensor_device_write(a, &all, &guard));
  memset((void*)(uintptr_t)terrace_device_guard_address(guard), 2, MIB);
  struct DLManagedTensor* managed = NULL;
  MUST(terrace_dlpack_device_guard(guard, &managed));
  CHECK(managed != NULL);
  terrace_device_guard_free(guard);
  struct terrace_tensor_statistics used = {.size = sizeof used};
  MUST(terrace_tensor_get_statistics(a, &used));
  CHECK(used.device_reads == 1 && used.device_writes == 1);
  CHECK_FAILS(terrace_tensor_read(a, NULL, &host), TERRACE_BUSY, "device");
  /* DLManagedTensor: a DLTensor of 48 bytes, its manager, its deleter */
  void (*deleter)(struct DLManagedTensor*);
  memcpy(&deleter, (const char*)managed + 56, sizeof deleter);
  deleter(managed);

  uint64_t there = 0, dirty = 0;
  MUST(terrace_tensor_hbm_residency(a, &there, &dirty));
  CHECK(there == MIB && dirty == MIB);
  MUST(terrace_tensor_write_back(a));
  MUST(terrace_tensor_hbm_residency(a, &there, &dirty));
  CHECK(there == MIB && dirty == 0 && *(const unsigned char*)terrace_tensor_data(a) == 2);
  MUST(terrace_tensor_discard_hbm(a));
  struct terrace_hbm_statistics statistics = {.size = sizeof statistics};
  MUST(terrace_pool_get_hbm_statistics(pool, &statistics));
  CHECK(statistics.capacity_bytes == 8 * MIB && statistics.budget_bytes == 2 * MIB);
  CHECK(statistics.used_bytes == 0 && statistics.write_backs == 1 && statistics.uploads == 1);
  terrace_tensor_free(a);
  terrace_pool_free(pool);
}

static void refused_in_words(void) {
  terrace_pool* pool = device_pool(MIB);
  terrace_tensor *a = bytes_of(pool, "a"), *b = bytes_of(pool, "b");
  terrace_move* move = NULL;
  MUST(terrace_tensor_pin(a, TERRACE_TIER_HBM, &move));
  MUST(terrace_move_wait(move, UINT64_MAX));
  terrace_move_free(move);
  terrace_device_guard* guard = NULL;
  CHECK_FAILS(terrace_tensor_device_read(b, NULL, &guard), TERRACE_CAPACITY_EXHAUSTED, "1048576 bytes short");
  CHECK_FAILS(terrace_tensor_discard_hbm(a), TERRACE_BUSY, "pinned");
  MUST(terrace_tensor_unpin(a));
  MUST(terrace_tensor_device_read(b, NULL, &guard));
  terrace_device_guard_free(guard);
  CHECK_FAILS(terrace_tensor_move_to(a, 3, NULL), TERRACE_INVALID_ARGUMENT, "TERRACE_TIER_HBM");
  CHECK_FAILS(terrace_tensor_device_read(NULL, NULL, &guard), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK(terrace_device_guard_address(NULL) == 0 && terrace_device_is_emulated(NULL) == 0);
  struct terrace_device_guard_options newer = {.size = sizeof newer, .reserved = 1};
  CHECK_FAILS(terrace_tensor_device_read(a, &newer, &guard), TERRACE_VERSION_MISMATCH, "`reserved`");
  struct terrace_cuda_options gpu = {.size = sizeof gpu, .reserved = 1};
  terrace_device* device = NULL;
  CHECK_FAILS(terrace_device_open_cuda(&gpu, &device), TERRACE_VERSION_MISMATCH, "`reserved`");
  CHECK_FAILS(terrace_device_make_emulated(NULL, NULL), TERRACE_INVALID_ARGUMENT, "device is NULL");
  struct terrace_hbm_statistics unsized = {.size = 1};
  CHECK_FAILS(terrace_pool_get_hbm_statistics(pool, &unsized), TERRACE_INVALID_ARGUMENT, "size");
  terrace_device_guard_free(NULL);
  terrace_tensor_free(a);
  terrace_tensor_free(b);
  terrace_pool_free(pool);

  struct terrace_pool_options without = {.size = sizeof without, .ddr_bytes = 8 * MIB};
  MUST(terrace_pool_make(&without, NULL, 0, &pool));
  a = bytes_of(pool, "a");
  CHECK_FAILS(terrace_tensor_device_read(a, NULL, &guard), TERRACE_UNSUPPORTED, "no tier hbm");
  terrace_tensor_free(a);
  terrace_pool_free(pool);
}

void hbm_tests(void) {
  told_of_a_device();
  used_on_both_sides();
  refused_in_words();
}
