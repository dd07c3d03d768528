// SPDX-License-Identifier: Apache-2.0
/* What a wrong call says: codes, texts, options of other versions, null. */
#include <errno.h>
#include <pthread.h>

#include "tests/unit/c_api/checks.h"

static void nobody_listens(void) {
  struct terrace_session_options options = {.size = sizeof options, .socket_path = "/nonexistent/terraced.sock"};
  terrace_session* session = NULL;
  CHECK_FAILS(terrace_session_connect(&options, &session), TERRACE_UNAVAILABLE, "/nonexistent/terraced.sock");
  CHECK(session == NULL);
  CHECK(strstr(terrace_error_text(), "unavailable") != NULL);
}

static void codes_have_names(void) {
  CHECK(strcmp(terrace_code_name(TERRACE_OK), "ok") == 0);
  CHECK(strcmp(terrace_code_name(TERRACE_CAPACITY_EXHAUSTED), "capacity_exhausted") == 0);
  CHECK(strcmp(terrace_code_name(TERRACE_INTERNAL), "internal") == 0);
  CHECK(strcmp(terrace_code_name(-1), "internal") == 0);
  CHECK(strcmp(terrace_code_name(1000), "internal") == 0);
  CHECK(strlen(terrace_version()) >= 5);
}

static void null_is_an_error(void) {
  terrace_tensor* tensor = NULL;
  uint64_t bytes = 0;
  CHECK_FAILS(terrace_session_connect(NULL, NULL), TERRACE_INVALID_ARGUMENT, "session is NULL");
  CHECK_FAILS(terrace_lease_grant(NULL, NULL, NULL), TERRACE_INVALID_ARGUMENT, "session is NULL");
  CHECK_FAILS(terrace_lease_attach(NULL, 1, NULL, 0, NULL), TERRACE_INVALID_ARGUMENT, "session is NULL");
  CHECK_FAILS(terrace_lease_renew(NULL, 0), TERRACE_INVALID_ARGUMENT, "lease is NULL");
  CHECK_FAILS(terrace_lease_resize(NULL, 0), TERRACE_INVALID_ARGUMENT, "lease is NULL");
  CHECK_FAILS(terrace_lease_release(NULL), TERRACE_INVALID_ARGUMENT, "lease is NULL");
  CHECK_FAILS(terrace_lease_get_info(NULL, NULL), TERRACE_INVALID_ARGUMENT, "lease is NULL");
  CHECK_FAILS(terrace_session_leases(NULL, NULL), TERRACE_INVALID_ARGUMENT, "session is NULL");
  CHECK_FAILS(terrace_session_pools(NULL, NULL), TERRACE_INVALID_ARGUMENT, "session is NULL");
  CHECK_FAILS(terrace_lease_infos_get(NULL, 0, NULL), TERRACE_INVALID_ARGUMENT, "infos is NULL");
  CHECK_FAILS(terrace_pool_infos_get(NULL, 0, NULL), TERRACE_INVALID_ARGUMENT, "infos is NULL");
  CHECK(terrace_lease_infos_count(NULL) == 0 && terrace_pool_infos_count(NULL) == 0);
  CHECK_FAILS(terrace_mapping_map(NULL, NULL), TERRACE_INVALID_ARGUMENT, "lease is NULL");
  CHECK_FAILS(terrace_pool_make(NULL, NULL, 0, NULL), TERRACE_INVALID_ARGUMENT, "pool is NULL");
  CHECK_FAILS(terrace_pool_create(NULL, NULL, &tensor), TERRACE_INVALID_ARGUMENT, "pool is NULL");
  CHECK_FAILS(terrace_pool_find(NULL, "x", &tensor), TERRACE_INVALID_ARGUMENT, "pool is NULL");
  CHECK_FAILS(terrace_pool_step(NULL), TERRACE_INVALID_ARGUMENT, "pool is NULL");
  CHECK_FAILS(terrace_pool_get_statistics(NULL, NULL), TERRACE_INVALID_ARGUMENT, "pool is NULL");
  CHECK_FAILS(terrace_pool_set_copy_budget(NULL, 0), TERRACE_INVALID_ARGUMENT, "pool is NULL");
  CHECK_FAILS(terrace_tensor_slice(NULL, 0, 0, 0, 1, &tensor), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_tensor_as_strided(NULL, 0, NULL, NULL, 0, &tensor), TERRACE_INVALID_ARGUMENT,
              "tensor is NULL");
  CHECK_FAILS(terrace_tensor_read(NULL, NULL, NULL), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_tensor_write(NULL, NULL, NULL), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_tensor_pin(NULL, 0, NULL), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_tensor_unpin(NULL), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_tensor_prefetch(NULL, NULL), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_tensor_move_to(NULL, 0, NULL), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_tensor_advise(NULL, NULL), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_tensor_residency(NULL, &bytes, &bytes), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_tensor_get_statistics(NULL, NULL), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_move_wait(NULL, 0), TERRACE_INVALID_ARGUMENT, "move is NULL");
  CHECK_FAILS(terrace_ownership_by_manager(NULL, NULL), TERRACE_INVALID_ARGUMENT, "lease is NULL");
  CHECK_FAILS(terrace_ownership_by_locks(-1, 0, NULL), TERRACE_INVALID_ARGUMENT, "ownership is NULL");
  CHECK_FAILS(terrace_space_format(NULL, 0, NULL), TERRACE_INVALID_ARGUMENT, "memory is NULL");
  CHECK_FAILS(terrace_space_attach(NULL, 0, NULL, NULL), TERRACE_INVALID_ARGUMENT, "memory is NULL");
  CHECK_FAILS(terrace_space_attach_mapping(NULL, NULL, NULL), TERRACE_INVALID_ARGUMENT, "mapping is NULL");
  CHECK_FAILS(terrace_space_create(NULL, NULL, NULL, NULL), TERRACE_INVALID_ARGUMENT, "space is NULL");
  CHECK_FAILS(terrace_space_open(NULL, "x", NULL), TERRACE_INVALID_ARGUMENT, "space is NULL");
  CHECK_FAILS(terrace_space_list(NULL, NULL, NULL), TERRACE_INVALID_ARGUMENT, "space is NULL");
  CHECK_FAILS(terrace_shared_remove(NULL, 0), TERRACE_INVALID_ARGUMENT, "shared is NULL");
  CHECK_FAILS(terrace_shared_version(NULL, &bytes), TERRACE_INVALID_ARGUMENT, "shared is NULL");
  CHECK_FAILS(terrace_shared_read(NULL, NULL, 0, 0, 0, NULL), TERRACE_INVALID_ARGUMENT, "shared is NULL");
  CHECK_FAILS(terrace_shared_publish(NULL, NULL, 0, 0, NULL), TERRACE_INVALID_ARGUMENT, "shared is NULL");
  CHECK_FAILS(terrace_shared_wait_for_version(NULL, 0, 0, NULL), TERRACE_INVALID_ARGUMENT, "shared is NULL");
  CHECK_FAILS(terrace_shared_pin(NULL, 0, NULL), TERRACE_INVALID_ARGUMENT, "shared is NULL");
  CHECK_FAILS(terrace_shared_write(NULL, 0, NULL), TERRACE_INVALID_ARGUMENT, "shared is NULL");
  CHECK_FAILS(terrace_write_publish(NULL, NULL), TERRACE_INVALID_ARGUMENT, "write is NULL");
  CHECK_FAILS(terrace_dlpack_tensor(NULL, NULL), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_dlpack_tensor_versioned(NULL, 0, NULL), TERRACE_INVALID_ARGUMENT, "tensor is NULL");
  CHECK_FAILS(terrace_dlpack_pin_versioned(NULL, NULL), TERRACE_INVALID_ARGUMENT, "pin is NULL");
}

/* Questions and frees have no code to return: they answer with nothing. */
static void null_handles_have_nothing(void) {
  CHECK(terrace_session_connected(NULL) == 0);
  CHECK(terrace_lease_id(NULL) == 0 && terrace_lease_epoch(NULL) == 0 && terrace_lease_bytes(NULL) == 0);
  CHECK(terrace_lease_state(NULL) == TERRACE_LEASE_LOST && terrace_lease_fd(NULL) == -1);
  CHECK(terrace_mapping_data(NULL) == NULL && terrace_mapping_const_data(NULL) == NULL);
  CHECK(terrace_mapping_bytes(NULL) == 0);
  CHECK(strcmp(terrace_tensor_name(NULL), "") == 0 && terrace_tensor_dtype(NULL) == 0);
  CHECK(terrace_tensor_rank(NULL) == 0 && terrace_tensor_shape(NULL) == NULL);
  CHECK(terrace_tensor_strides(NULL) == NULL && terrace_tensor_data(NULL) == NULL);
  CHECK(terrace_tensor_lowest(NULL) == NULL && terrace_tensor_bytes(NULL) == 0);
  CHECK(terrace_tensor_is_view(NULL) == 0 && terrace_tensor_hint(NULL) == 0 && terrace_tensor_flags(NULL) == 0);
  CHECK(terrace_guard_data(NULL) == NULL && terrace_guard_writable(NULL) == NULL && terrace_guard_bytes(NULL) == 0);
  CHECK(terrace_move_done(NULL) == 0 && terrace_move_bytes_there(NULL) == 0);
  CHECK(terrace_lease_on_fence(NULL) == -1 && terrace_lease_access(NULL) == -1);
  CHECK(strcmp(terrace_session_tenant(NULL), "") == 0);
  CHECK(terrace_space_part(NULL) == -1 && terrace_space_free_bytes(NULL) == 0);
  CHECK(strcmp(terrace_shared_name(NULL), "") == 0 && terrace_shared_bytes(NULL) == 0);
  CHECK(terrace_shared_shape(NULL) == NULL && terrace_shared_rank(NULL) == 0 && terrace_shared_dtype(NULL) == 0);
  CHECK(terrace_shared_is_current(NULL, 2) == 0 && terrace_shared_part(NULL) == 0);
  CHECK(terrace_shared_double_buffered(NULL) == 0);
  CHECK(terrace_pin_data(NULL) == NULL && terrace_pin_bytes(NULL) == 0 && terrace_pin_version(NULL) == 0);
  CHECK(terrace_write_data(NULL) == NULL && terrace_write_bytes(NULL) == 0);
  terrace_session_free(NULL);
  terrace_lease_free(NULL);
  terrace_mapping_free(NULL);
  terrace_pool_free(NULL);
  terrace_tensor_free(NULL);
  terrace_guard_free(NULL);
  terrace_move_free(NULL);
  terrace_lease_infos_free(NULL);
  terrace_pool_infos_free(NULL);
  CHECK(terrace_space_seat(NULL) == -1);
  terrace_ownership_free(NULL);
  terrace_space_free(NULL);
  terrace_shared_free(NULL);
  terrace_pin_free(NULL);
  terrace_write_free(NULL);
}

static void options_of_other_versions(void) {
  struct {
    struct terrace_pool_options known;
    uint64_t newer;
  } next = {.known = {.ddr_bytes = 4 << 20}};
  terrace_pool* pool = NULL;
  CHECK_FAILS(terrace_pool_make(&next.known, NULL, 0, &pool), TERRACE_INVALID_ARGUMENT, "size is 0");
  next.known.size = 12345678;
  CHECK_FAILS(terrace_pool_make(&next.known, NULL, 0, &pool), TERRACE_INVALID_ARGUMENT, "size is 12345678");
  next.known.size = sizeof next.known - 1;
  CHECK_FAILS(terrace_pool_make(&next.known, NULL, 0, &pool), TERRACE_INVALID_ARGUMENT, "sizeof");
  next.known.size = sizeof next;
  next.newer = 1;
  CHECK_FAILS(terrace_pool_make(&next.known, NULL, 0, &pool), TERRACE_VERSION_MISMATCH, "newer libterrace");
  next.newer = 0;
  MUST(terrace_pool_make(&next.known, NULL, 0, &pool));

  /* An older program's: the members behind its end are not looked at, nor written to. */
  struct terrace_pool_statistics statistics;
  memset(&statistics, 0x5a, sizeof statistics);
  statistics.size = offsetof(struct terrace_pool_statistics, free_bytes);
  MUST(terrace_pool_get_statistics(pool, &statistics));
  CHECK(statistics.capacity_bytes > 0 && statistics.capacity_bytes <= 4 << 20);
  CHECK(statistics.free_bytes == 0x5a5a5a5a5a5a5a5a);
  CHECK(statistics.size == offsetof(struct terrace_pool_statistics, free_bytes));
  /* A newer program's: what this library does not know is 0. */
  struct {
    struct terrace_pool_statistics known;
    uint64_t newer;
  } more;
  memset(&more, 0x5a, sizeof more);
  more.known.size = sizeof more;
  MUST(terrace_pool_get_statistics(pool, &more.known));
  CHECK(more.known.size == sizeof more && more.newer == 0);
  more.known.size = 12345672;
  CHECK_FAILS(terrace_pool_get_statistics(pool, &more.known), TERRACE_INVALID_ARGUMENT, "size is 12345672");
  terrace_pool_free(pool);

  struct terrace_pool_options older = {.size = offsetof(struct terrace_pool_options, copy_bytes_per_s_max),
                                       .ddr_bytes = 4 << 20,
                                       .guard_wait = 77};
  MUST(terrace_pool_make(&older, NULL, 0, &pool));
  terrace_pool_free(pool);
}

static void* other_thread(void* text) {
  CHECK(strcmp(terrace_error_text(), "") == 0);
  CHECK_FAILS(terrace_pool_step(NULL), TERRACE_INVALID_ARGUMENT, "terrace_pool_step");
  return text;
}

static void each_thread_has_its_own_error(void) {
  pthread_t thread;
  CHECK_FAILS(terrace_move_wait(NULL, 0), TERRACE_INVALID_ARGUMENT, "terrace_move_wait");
  CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  pthread_join(thread, NULL);
  CHECK(strstr(terrace_error_text(), "terrace_move_wait") != NULL);
}

void errors_tests(void) {
  nobody_listens();
  codes_have_names();
  null_is_an_error();
  null_handles_have_nothing();
  options_of_other_versions();
  each_thread_has_its_own_error();
}
