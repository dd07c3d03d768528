// SPDX-License-Identifier: Apache-2.0
/* A program in C that leases memory, keeps tensors in it and shares some. c_api_test.py starts it.
 *
 *   c_client SOCKET pool            a pool of tensors over a lease; everything freed in the wrong order
 *   c_client SOCKET checkpoint DIR  a checkpoint of a pool over a lease, stored to meanwhile, and restored over itself
 *   c_client SOCKET share LABEL     makes a shared lease of that label with a space, publishes, waits for a line, ends
 *   c_client SOCKET read LABEL      reads in place what was published there, as who may write later
 *   c_client SOCKET own LABEL       the same with a part of its own
 *   c_client SOCKET watch LABEL     the same as who never writes
 *   c_client SOCKET infos LABEL     what is told of that lease and of the pools
 *   c_client SOCKET format          makes spaces, and says how coherent they are
 *   c_client SOCKET model LABEL      the tensors of a model in the lease of that label, or of files at that path
 *   c_client SOCKET notices         tells of notices: one by next_notice and poll, the others by a handler
 *
 * Prints what it saw; exits with 1 and the error's text when a call fails.
 */
#include <terrace/terrace_c.h>

#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

static void must(terrace_code code, const char* what) {
  if (code == TERRACE_OK) return;
  fprintf(stderr, "%s: %s\n", what, terrace_error_text());
  exit(1);
}
#define MUST(call) must((call), #call)

static terrace_session* connect_to(const char* socket) {
  struct terrace_session_options options = {
      .size = sizeof options, .socket_path = socket, .client_name = "c_client", .call_timeout_ns = 60000000000u};
  terrace_session* session = NULL;
  MUST(terrace_session_connect(&options, &session));
  return session;
}

static void told(const struct terrace_notice* notice, void* context) {
  printf("told %d %s %d\n", notice->state, notice->reason, *(int*)context);
  fflush(stdout);
  if (notice->state == TERRACE_LEASE_LOST) exit(5); /* in the handler */
}

static void hear_notices(terrace_session* session) {
  struct terrace_lease_request request = {.size = sizeof request, .bytes = 2 * MIB, .label = "c"};
  terrace_lease* lease = NULL;
  MUST(terrace_lease_grant(session, &request, &lease));
  struct terrace_notice notice = {.size = sizeof notice};
  printf("none %s %s\n", terrace_code_name(terrace_session_next_notice(session, &notice)),
         terrace_code_name(terrace_session_next_notice(session, NULL)));
  fflush(stdout);
  struct pollfd readable = {.fd = terrace_session_notice_fd(session), .events = POLLIN};
  if (poll(&readable, 1, 60000) != 1) exit(1);
  MUST(terrace_session_next_notice(session, &notice));
  printf("next %d %d %s %d\n", notice.lease == terrace_lease_id(lease), notice.state, notice.reason,
         notice.grace_ns > 0);
  fflush(stdout);
  int context = 42;
  MUST(terrace_session_on_notice(session, told, &context));
  for (;;) poll(NULL, 0, 1000);
}

static void use_a_pool(terrace_session* session) {
  struct terrace_lease_request request = {.size = sizeof request, .bytes = 32 * MIB, .label = "c"};
  terrace_lease *lease = NULL, *none = NULL;
  MUST(terrace_lease_grant(session, &request, &lease));
  printf("lease %d %d %d %s\n", terrace_lease_bytes(lease) == 32 * MIB, terrace_lease_state(lease) == TERRACE_LEASE_LIVE,
         terrace_lease_access(lease) == TERRACE_ACCESS_READ_WRITE, terrace_session_tenant(session));
  request.label = NULL;
  request.bytes = (uint64_t)1 << 40;
  const terrace_code refused = terrace_lease_grant(session, &request, &none);
  printf("refused %s %d\n", terrace_code_name(refused), none == NULL);
  request.mode = 3;
  printf("refused %s\n", terrace_code_name(terrace_lease_grant(session, &request, &none)));

  struct terrace_pool_options options = {.size = sizeof options, .session = session, .ddr_bytes = 8 * MIB};
  terrace_pool* pool = NULL;
  MUST(terrace_pool_make(&options, &lease, 1, &pool));
  const uint64_t dimensions[] = {4, MIB};
  struct terrace_tensor_spec spec = {
      .size = sizeof spec, .name = "t", .dtype = TERRACE_DTYPE_U8, .rank = 2, .dimensions = dimensions};
  terrace_tensor* tensor = NULL;
  MUST(terrace_pool_create(pool, &spec, &tensor));
  terrace_move* move = NULL;
  memset(terrace_tensor_data(tensor), 5, terrace_tensor_bytes(tensor));
  const terrace_code begun = terrace_tensor_move_to(tensor, TERRACE_TIER_CXL, &move);
  if (begun == TERRACE_OK) {
    MUST(terrace_move_wait(move, 60000000000u));
    uint64_t ddr = 1, cxl = 0;
    MUST(terrace_tensor_residency(tensor, &ddr, &cxl));
    printf("moved %d\n", ddr == 0 && cxl == 4 * MIB && ((char*)terrace_tensor_data(tensor))[4 * MIB - 1] == 5);
  } else {
    printf("stays %s\n", terrace_code_name(begun));
  }
  /* What is used last keeps what it stands on. */
  terrace_move_free(move);
  terrace_session_free(session);
  terrace_pool_free(pool);
  MUST(terrace_lease_renew(lease, 0));
  memset(terrace_tensor_data(tensor), 6, terrace_tensor_bytes(tensor));
  terrace_tensor_free(tensor);
  MUST(terrace_lease_release(lease));
  printf("released %d\n", terrace_lease_state(lease) == TERRACE_LEASE_LOST);
  terrace_lease_free(lease);
}

static void checkpoint(terrace_session* session, const char* path) {
  struct terrace_lease_request request = {.size = sizeof request, .bytes = 96 * MIB};
  terrace_lease* lease = NULL;
  MUST(terrace_lease_grant(session, &request, &lease));
  struct terrace_pool_options options = {.size = sizeof options, .session = session, .ddr_bytes = 8 * MIB};
  terrace_pool* pool = NULL;
  MUST(terrace_pool_make(&options, &lease, 1, &pool));
  const uint64_t dimensions[] = {24 * MIB};
  struct terrace_tensor_spec spec = {
      .size = sizeof spec, .name = "t", .dtype = TERRACE_DTYPE_U8, .rank = 1, .dimensions = dimensions};
  terrace_tensor* tensor = NULL;
  MUST(terrace_pool_create(pool, &spec, &tensor));
  char* bytes = terrace_tensor_data(tensor);
  memset(bytes, 1, 24 * MIB);

  terrace_checkpoints* directory = NULL;
  MUST(terrace_checkpoints_open(path, 0, &directory));
  terrace_checkpoint* written = NULL;
  MUST(terrace_checkpoint_begin(directory, "one", pool, &tensor, 1, NULL, &written));
  for (int step = 2; !terrace_checkpoint_done(written); step = step % 100 + 2) memset(bytes, step, 24 * MIB);
  MUST(terrace_checkpoint_wait(written, 0));
  terrace_checkpoint_free(written);
  memset(bytes, 101, 24 * MIB);

  const char* const names[] = {"t"};
  struct terrace_restore_options over = {
      .size = sizeof over, .names = names, .name_count = 1, .into_existing = 1};
  terrace_tensors* back = NULL;
  MUST(terrace_checkpoints_restore(directory, "one", pool, &over, &back));
  uint64_t right = 0;
  for (uint64_t i = 0; i < 24 * MIB; ++i) right += bytes[i] == 1;
  printf("restored %d\n", right == 24 * MIB);
  terrace_tensors_free(back);
  terrace_checkpoints_free(directory);
  terrace_tensor_free(tensor);
  terrace_pool_free(pool);
  MUST(terrace_lease_release(lease));
  terrace_lease_free(lease);
  terrace_session_free(session);
}

static terrace_space* attach(terrace_lease* lease, int format, int without_part, int claim) {
  terrace_mapping* mapping = NULL;
  MUST(terrace_mapping_map(lease, &mapping));
  struct terrace_space_options options = {
      .size = sizeof options, .parts = 4, .records_per_part = 64, .lease_epoch = terrace_lease_epoch(lease)};
  if (format)
    MUST(terrace_space_format(terrace_mapping_data(mapping), terrace_mapping_bytes(mapping), &options));
  struct terrace_attach_options how = {.size = sizeof how, .without_part = without_part, .claim = claim};
  MUST(terrace_ownership_by_manager(lease, &how.ownership));
  terrace_space* space = NULL;
  MUST(terrace_space_attach_mapping(mapping, &how, &space));
  terrace_ownership_free(how.ownership);
  terrace_mapping_free(mapping); /* the space keeps it */
  return space;
}

static void share(terrace_session* session, const char* label) {
  struct terrace_lease_request request = {
      .size = sizeof request, .bytes = 16 * MIB, .label = label, .mode = TERRACE_LEASE_SHARED_COHERENT};
  terrace_lease* lease = NULL;
  MUST(terrace_lease_grant(session, &request, &lease));
  terrace_space* space = attach(lease, 1, 0, TERRACE_CLAIM_AT_ONCE);
  const uint64_t dimensions[] = {MIB};
  struct terrace_tensor_spec spec = {
      .size = sizeof spec, .name = "kv/1", .dtype = TERRACE_DTYPE_U8, .rank = 1, .dimensions = dimensions};
  terrace_shared* shared = NULL;
  MUST(terrace_space_create(space, &spec, NULL, &shared));
  terrace_write* write = NULL;
  MUST(terrace_shared_write(shared, 0, &write));
  memset(terrace_write_data(write), 9, terrace_write_bytes(write));
  MUST(terrace_write_publish(write, NULL));
  terrace_write_free(write);
  printf("published\n");
  fflush(stdout);
  char line[16];
  if (fgets(line, sizeof line, stdin) == NULL) exit(1);
  terrace_shared_free(shared);
  terrace_space_free(space);
  terrace_lease_free(lease);
  terrace_session_free(session);
}

static void read_there(terrace_session* session, const char* label, int without_part, int claim) {
  terrace_lease* lease = NULL;
  MUST(terrace_lease_attach(session, 0, label, 0, &lease));
  terrace_space* space = attach(lease, 0, without_part, claim);
  terrace_shared* shared = NULL;
  MUST(terrace_space_open(space, "kv/1", &shared));
  terrace_pin* pin = NULL;
  MUST(terrace_shared_pin(shared, 30000000000u, &pin));
  printf("part %d seat %d\n", terrace_space_part(space), terrace_space_seat(space));
  terrace_shared_free(shared);
  terrace_space_free(space);
  terrace_lease_free(lease);
  terrace_session_free(session);
  const char* bytes = terrace_pin_data(pin); /* the pin keeps all of them */
  uint64_t right = 0;
  for (uint64_t i = 0; i < terrace_pin_bytes(pin); ++i) right += bytes[i] == 9;
  printf("read %d\n", right == MIB);
  terrace_pin_free(pin);
}

static void tell(terrace_session* session, const char* label) {
  terrace_lease* lease = NULL;
  MUST(terrace_lease_attach(session, 0, label, 0, &lease));
  terrace_lease_infos *one = NULL, *all = NULL;
  MUST(terrace_lease_get_info(lease, &one));
  MUST(terrace_session_leases(session, &all));
  struct terrace_lease_info told = {.size = sizeof told}, listed = {.size = sizeof listed};
  MUST(terrace_lease_infos_get(one, 0, &told));
  MUST(terrace_lease_infos_get(all, 0, &listed));
  printf("%zu %zu %llu %s %s %s %s %llu %d %s\n", terrace_lease_infos_count(one), terrace_lease_infos_count(all),
         (unsigned long long)told.id, told.pool, told.label, told.object, told.phase, (unsigned long long)told.bytes,
         told.coherence, told.figures->isolation);
  for (size_t i = 0; i < told.extent_count; ++i)
    printf("extent %s %llu\n", told.extents[i]->device, (unsigned long long)told.extents[i]->length_bytes);
  for (size_t i = 0; i < told.owner_count; ++i)
    printf("owner %u %llu %d %s\n", told.owners[i]->part, (unsigned long long)told.owners[i]->epoch,
           told.owners[i]->owned, told.owners[i]->holder);
  terrace_pool_infos* pools = NULL;
  MUST(terrace_session_pools(session, &pools));
  struct terrace_pool_info pool = {.size = sizeof pool};
  MUST(terrace_pool_infos_get(pools, 0, &pool));
  printf("pool %s %s %llu %llu %u %d\n", pool.name, pool.devices[0], (unsigned long long)pool.capacity_bytes,
         (unsigned long long)pool.leased_bytes, pool.leases, pool.coherence);
  uint64_t free_bytes = 0;
  for (size_t i = 0; i < pool.free_run_count; ++i) free_bytes += pool.free_runs[i]->bytes;
  /* An older program's struct is shorter; what is beyond the list is refused. */
  struct terrace_pool_info older = {.size = offsetof(struct terrace_pool_info, devices), .device_count = 77};
  MUST(terrace_pool_infos_get(pools, 0, &older));
  printf("free %d older %d beyond %s\n", free_bytes == pool.free_bytes,
         strcmp(older.name, pool.name) == 0 && older.device_count == 77,
         terrace_code_name(terrace_pool_infos_get(pools, 1, &pool)));
  terrace_pool_infos_free(pools);
  terrace_lease_infos_free(one);
  terrace_lease_infos_free(all);
  terrace_lease_free(lease);
  terrace_session_free(session);
}

/* By default, said to be noncoherent, said to be coherent; of memory that is a lease's, by its address alone. */
static void format_spaces(terrace_session* session) {
  struct terrace_lease_request request = {
      .size = sizeof request, .bytes = 16 * MIB, .mode = TERRACE_LEASE_SHARED_COHERENT};
  terrace_lease* lease = NULL;
  MUST(terrace_lease_grant(session, &request, &lease));
  terrace_mapping* mapping = NULL;
  MUST(terrace_mapping_map(lease, &mapping));
  char* memory = terrace_mapping_data(mapping);
  const struct terrace_space_options asked[] = {
      {.size = sizeof asked[0]},
      {.size = offsetof(struct terrace_space_options, set_coherence)}, /* an older program */
      {.size = sizeof asked[0], .coherence = TERRACE_SPACE_NONCOHERENT},
      {.size = sizeof asked[0], .coherence = TERRACE_SPACE_COHERENT, .set_coherence = 1}};
  for (int i = 0; i < 4; ++i) {
    const terrace_code code = terrace_space_format(memory, terrace_mapping_bytes(mapping), &asked[i]);
    const uint32_t* mode = (const void*)(memory + 60); /* docs/formats/tensor_space.md */
    printf("%s", i == 0 ? "" : " ");
    if (code == TERRACE_OK)
      printf("%u", *mode);
    else
      printf("%s", terrace_code_name(code));
  }
  printf("\n");
  terrace_mapping_free(mapping);
  MUST(terrace_lease_release(lease));
  terrace_lease_free(lease);
  terrace_session_free(session);
}

static void list_model(terrace_session* session, const char* where) {
  terrace_model* model = NULL;
  if (strchr(where, '/') != NULL)
    MUST(terrace_model_open_files(where, &model));
  else
    MUST(terrace_model_open(session, 0, where, &model));
  struct terrace_model_tensor tensor = {.size = sizeof tensor};
  for (size_t i = 0; i < terrace_model_count(model); ++i) {
    MUST(terrace_model_get(model, i, &tensor));
    uint64_t sum = 0;
    for (uint64_t at = 0; at < tensor.bytes; ++at) sum += ((const unsigned char*)tensor.data)[at];
    printf("%s %d %u %llu %llu %llu\n", tensor.name, tensor.dtype, tensor.rank,
           (unsigned long long)(tensor.rank > 0 ? tensor.dimensions[0] : 0), (unsigned long long)tensor.bytes,
           (unsigned long long)sum);
  }
  for (size_t i = 0; i < terrace_model_metadata_count(model); ++i)
    printf("%s=%s\n", terrace_model_metadata_key(model, i), terrace_model_metadata_value(model, i));
  struct terrace_model_tensor small = {.size = sizeof(size_t) - 1};
  printf("refused %s %s %s %s\n", terrace_code_name(terrace_model_get(model, 1000, &tensor)),
         terrace_code_name(terrace_model_find(model, "none", &tensor)),
         terrace_code_name(terrace_model_get(model, 0, &small)),
         terrace_code_name(terrace_model_open(session, 0, "", &model)));
  terrace_session_free(session); /* the model keeps its lease and the session */
  MUST(terrace_model_find(model, "b", &tensor));
  printf("takes stores %d verify %s [%s]\n", terrace_model_takes_stores(model),
         terrace_code_name(terrace_model_verify(model)), terrace_model_metadata_key(model, 1000));
  terrace_model_free(model);
  terrace_model_free(NULL);
  printf("null %zu %s %d\n", terrace_model_count(NULL), terrace_code_name(terrace_model_verify(NULL)),
         terrace_model_takes_stores(NULL));
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  terrace_session* session = connect_to(argv[1]);
  if (strcmp(argv[2], "pool") == 0)
    use_a_pool(session);
  else if (strcmp(argv[2], "notices") == 0)
    hear_notices(session);
  else if (argc > 3 && strcmp(argv[2], "model") == 0)
    list_model(session, argv[3]);
  else if (argc > 3 && strcmp(argv[2], "checkpoint") == 0)
    checkpoint(session, argv[3]);
  else if (argc > 3 && strcmp(argv[2], "share") == 0)
    share(session, argv[3]);
  else if (strcmp(argv[2], "format") == 0)
    format_spaces(session);
  else if (argc > 3 && strcmp(argv[2], "infos") == 0)
    tell(session, argv[3]);
  else if (argc > 3)
    read_there(session, argv[3], strcmp(argv[2], "watch") == 0, strcmp(argv[2], "read") != 0);
  return 0;
}
