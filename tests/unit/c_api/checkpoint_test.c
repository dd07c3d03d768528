// SPDX-License-Identifier: Apache-2.0
/* Checkpoints through the C interface: begun, waited for, listed, restored as a whole and in part, damaged. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/c_api/checks.h"

#define MIB ((uint64_t)1 << 20)
#define PATIENCE_NS ((uint64_t)60 * 1000 * 1000 * 1000)

struct fixture {
  char path[64];
  terrace_pool* pool;
  terrace_tensor* tensors[3];
  terrace_checkpoints* directory;
};

static terrace_tensor* bytes_tensor(terrace_pool* pool, const char* name, uint64_t bytes, int fill) {
  struct terrace_tensor_spec spec = {
      .size = sizeof spec, .name = name, .dtype = TERRACE_DTYPE_U8, .rank = 1, .dimensions = &bytes};
  terrace_tensor* tensor = NULL;
  MUST(terrace_pool_create(pool, &spec, &tensor));
  memset(terrace_tensor_data(tensor), fill, bytes);
  return tensor;
}

static int is_all(const terrace_tensor* tensor, int fill) {
  const unsigned char* bytes = terrace_tensor_data(tensor);
  for (uint64_t i = 0; i < terrace_tensor_bytes(tensor); ++i)
    if (bytes[i] != fill) return 0;
  return 1;
}

static void write_one(struct fixture* f, const char* name, const struct terrace_checkpoint_options* options) {
  terrace_checkpoint* checkpoint = NULL;
  MUST(terrace_checkpoint_begin(f->directory, name, f->pool, f->tensors, 3, options, &checkpoint));
  for (int i = 0; i < 3; ++i) /* what is stored now is not in it */
    memset(terrace_tensor_data(f->tensors[i]), 99, terrace_tensor_bytes(f->tensors[i]));
  MUST(terrace_checkpoint_wait(checkpoint, PATIENCE_NS));
  CHECK(terrace_checkpoint_done(checkpoint));
  struct terrace_checkpoint_progress progress = {.size = sizeof progress};
  MUST(terrace_checkpoint_get_progress(checkpoint, &progress));
  CHECK(progress.written_bytes == progress.file_bytes && progress.file_bytes > 9 * MIB);
  CHECK(progress.snapshot_bytes >= 9 * MIB && progress.pause_ns > 0);
  terrace_checkpoint_free(checkpoint);
  for (int i = 0; i < 3; ++i)
    memset(terrace_tensor_data(f->tensors[i]), i + 1, terrace_tensor_bytes(f->tensors[i]));
}

static void made(struct fixture* f) {
  strcpy(f->path, "/var/tmp/terrace-c-XXXXXX");
  if (mkdtemp(f->path) == NULL) exit(1);
  f->pool = ddr_pool(64 * MIB);
  f->tensors[0] = bytes_tensor(f->pool, "a", 4 * MIB, 1);
  f->tensors[1] = bytes_tensor(f->pool, "b", 5 * MIB, 2);
  f->tensors[2] = bytes_tensor(f->pool, "c", 100, 3);
  MUST(terrace_checkpoints_open(f->path, 1, &f->directory));
  const char* const metadata[] = {"step", "7", "run", "x"};
  struct terrace_checkpoint_options options = {.size = sizeof options, .metadata = metadata, .metadata_count = 2};
  write_one(f, "one", &options);
}

static void freed(struct fixture* f) {
  for (int i = 0; i < 3; ++i) terrace_tensor_free(f->tensors[i]);
  terrace_checkpoints_free(f->directory);
  terrace_pool_free(f->pool);
  char lock[80];
  snprintf(lock, sizeof lock, "%s/.lock", f->path);
  unlink(lock);
  CHECK(rmdir(f->path) == 0); /* nothing else is left */
}

struct seen {
  int whole, damaged;
  char name[136];
};

static int count(void* context, const struct terrace_checkpoint_info* info, const char* damage) {
  struct seen* seen = context;
  *(damage == NULL ? &seen->whole : &seen->damaged) += 1;
  snprintf(seen->name, sizeof seen->name, "%s", info->name);
  CHECK(damage == NULL ? info->tensors == 3 : strstr(damage, "corrupt") != NULL);
  CHECK(damage == NULL ? strstr(info->file, "/one/tensors.safetensors") != NULL : info->file[0] == 0);
  return 0;
}

static int stop_at_once(void* context, const struct terrace_checkpoint_info* info, const char* damage) {
  (void)info, (void)damage;
  ++*(int*)context;
  return 1;
}

static void listed_and_found(struct fixture* f) {
  struct seen seen = {0};
  struct terrace_checkpoint_leftovers leftovers = {.size = sizeof leftovers};
  MUST(terrace_checkpoints_list(f->directory, count, &seen, &leftovers));
  CHECK(seen.whole == 1 && seen.damaged == 0 && strcmp(seen.name, "one") == 0);
  CHECK(leftovers.half_written == 0 && leftovers.being_written == 0);
  struct terrace_checkpoint_info info = {.size = sizeof info};
  MUST(terrace_checkpoints_find(f->directory, "one", &info));
  CHECK(info.tensor_bytes == 9 * MIB + 100 && info.created_unix_ns > 0 && strcmp(info.name, "one") == 0);
  CHECK(access(info.file, R_OK) == 0 && strncmp(info.file, f->path, strlen(f->path)) == 0);
  struct {
    size_t size;
    uint64_t tensors, tensor_bytes, file_bytes, created_unix_ns;
    char name[136];
    void* behind;
  } older = {.size = offsetof(struct terrace_checkpoint_info, file), .behind = &older};
  MUST(terrace_checkpoints_find(f->directory, "one", (struct terrace_checkpoint_info*)&older));
  CHECK(older.tensors == 3 && older.behind == &older); /* an older program's struct is shorter */
  CHECK_FAILS(terrace_checkpoints_find(f->directory, "two", &info), TERRACE_NOT_FOUND, "'two'");
  struct terrace_checkpoint_verification verified = {.size = sizeof verified};
  MUST(terrace_checkpoints_verify(f->directory, "one", NULL, &verified));
  CHECK(verified.damaged_bytes == 0 && verified.damaged_count == 0 && verified.bytes == info.file_bytes);
}

static void count_progress(void* context, uint64_t done, uint64_t total) {
  CHECK(done <= total);
  ++*(int*)context;
}

static void restored(struct fixture* f) {
  terrace_pool* other = ddr_pool(64 * MIB);
  terrace_tensors* back = NULL;
  MUST(terrace_checkpoints_restore(f->directory, "one", other, NULL, &back));
  CHECK(terrace_tensors_count(back) == 3);
  CHECK(strcmp(terrace_tensors_metadata(back, "step"), "7") == 0);
  CHECK(terrace_tensors_metadata(back, "none") == NULL);
  for (size_t i = 0; i < terrace_tensors_count(back); ++i) {
    terrace_tensor* tensor = NULL;
    MUST(terrace_tensors_get(back, i, &tensor));
    CHECK(is_all(tensor, terrace_tensor_name(tensor)[0] - 'a' + 1)); /* not 99, which was stored later */
    CHECK(terrace_tensor_hint(tensor) == TERRACE_HINT_WEIGHTS);
    terrace_tensor_free(tensor);
  }
  terrace_tensor* none = NULL;
  CHECK_FAILS(terrace_tensors_get(back, 3, &none), TERRACE_INVALID_ARGUMENT, "index 3 of 3");
  terrace_tensors_free(back); /* and the tensors with it */
  CHECK_FAILS(terrace_pool_find(other, "a", &none), TERRACE_NOT_FOUND, "'a'");

  int calls = 0;
  const char* const some[] = {"c", "b"};
  struct terrace_transfer transfer = {.size = sizeof transfer, .progress = count_progress, .context = &calls};
  struct terrace_restore_options options = {.size = sizeof options,
                                            .names = some,
                                            .name_count = 2,
                                            .set_hint = 1,
                                            .hint = TERRACE_HINT_KV_CACHE,
                                            .transfer = &transfer};
  MUST(terrace_checkpoints_restore(f->directory, "one", other, &options, &back));
  CHECK(terrace_tensors_count(back) == 2 && calls > 0);
  MUST(terrace_tensors_get(back, 0, &none));
  CHECK(terrace_tensor_hint(none) == TERRACE_HINT_KV_CACHE);
  terrace_tensors_free(back);
  CHECK(is_all(none, terrace_tensor_name(none)[0] - 'a' + 1)); /* its own handle keeps it */
  terrace_tensor_free(none);

  const char* const missing[] = {"x", "a", "y"};
  options.names = missing;
  options.name_count = 3;
  back = NULL;
  CHECK_FAILS(terrace_checkpoints_restore(f->directory, "one", other, &options, &back), TERRACE_NOT_FOUND,
              "'x', 'y'");
  CHECK(back == NULL);
  options.names = NULL;
  CHECK_FAILS(terrace_checkpoints_restore(f->directory, "one", other, &options, &back),
              TERRACE_INVALID_ARGUMENT, "names is NULL");
  options.name_count = 0;
  options.hint = 77;
  CHECK_FAILS(terrace_checkpoints_restore(f->directory, "one", other, &options, &back),
              TERRACE_INVALID_ARGUMENT, "77 is no hint");
  options.set_hint = 0;
  options.reserved = 1;
  CHECK_FAILS(terrace_checkpoints_restore(f->directory, "one", other, &options, &back),
              TERRACE_VERSION_MISMATCH, "reserved");
  terrace_pool_free(other);

  for (int i = 0; i < 3; ++i) memset(terrace_tensor_data(f->tensors[i]), 50, terrace_tensor_bytes(f->tensors[i]));
  struct terrace_restore_options over = {.size = sizeof over, .into_existing = 1};
  MUST(terrace_checkpoints_restore(f->directory, "one", f->pool, &over, &back));
  terrace_tensors_free(back);
  for (int i = 0; i < 3; ++i) CHECK(is_all(f->tensors[i], i + 1));
}

static int always(void* context) {
  (void)context;
  return 1;
}

static void given_up(struct fixture* f) {
  struct terrace_transfer transfer = {.size = sizeof transfer, .cancelled = always};
  struct terrace_checkpoint_options options = {.size = sizeof options, .transfer = &transfer};
  terrace_checkpoint* checkpoint = NULL;
  MUST(terrace_checkpoint_begin(f->directory, "never", f->pool, f->tensors, 3, &options, &checkpoint));
  CHECK_FAILS(terrace_checkpoint_wait(checkpoint, PATIENCE_NS), TERRACE_CANCELLED, "given up");
  terrace_checkpoint_cancel(checkpoint);
  terrace_checkpoint_free(checkpoint);
  MUST(terrace_checkpoint_begin(f->directory, "never", f->pool, f->tensors, 3, NULL, &checkpoint));
  terrace_checkpoint_free(checkpoint); /* whatever it has come to: nothing, or the whole of it */
  struct terrace_checkpoint_info info = {.size = sizeof info};
  if (terrace_checkpoints_find(f->directory, "never", &info) == TERRACE_OK)
    MUST(terrace_checkpoints_remove(f->directory, "never"));
  struct seen seen = {0};
  struct terrace_checkpoint_leftovers leftovers = {.size = sizeof leftovers};
  MUST(terrace_checkpoints_list(f->directory, count, &seen, &leftovers));
  CHECK(seen.whole == 1 && leftovers.half_written == 0);
}

static void files_in_and_out(struct fixture* f) {
  char file[96];
  snprintf(file, sizeof file, "%s/out", f->path);
  const char* const some[] = {"c"};
  struct terrace_export_options options = {.size = sizeof options, .names = some, .name_count = 1};
  MUST(terrace_checkpoints_export(f->directory, "one", file, &options));
  CHECK_FAILS(terrace_checkpoints_export(f->directory, "one", file, NULL), TERRACE_ALREADY_EXISTS, "out");
  MUST(terrace_checkpoints_import(f->directory, file, "part", NULL));
  struct terrace_checkpoint_info info = {.size = sizeof info};
  MUST(terrace_checkpoints_find(f->directory, "part", &info));
  CHECK(info.tensors == 1 && info.tensor_bytes == 100);
  CHECK_FAILS(terrace_checkpoints_import(f->directory, file, "no/name", NULL), TERRACE_INVALID_ARGUMENT, "no/name");
  MUST(terrace_checkpoints_remove(f->directory, "part"));
  CHECK_FAILS(terrace_checkpoints_remove(f->directory, "part"), TERRACE_NOT_FOUND, "'part'");
  unlink(file);
}

static void damage_is_told(struct fixture* f) {
  char file[128];
  snprintf(file, sizeof file, "%s/one/tensors.safetensors", f->path);
  FILE* data = fopen(file, "r+b");
  if (data == NULL) exit(1);
  fseek(data, -1, SEEK_END);
  fputc(0x55, data);
  fclose(data);
  struct terrace_checkpoint_verification verified = {.size = sizeof verified};
  MUST(terrace_checkpoints_verify(f->directory, "one", NULL, &verified));
  CHECK(verified.damaged_bytes == verified.bytes && verified.first_damaged_end == verified.bytes);
  CHECK(verified.damaged_count == 1 && verified.damaged[0].begin == 0);
  CHECK(verified.damaged[0].end == verified.bytes);
  terrace_tensors* back = NULL;
  terrace_pool* other = ddr_pool(64 * MIB);
  CHECK_FAILS(terrace_checkpoints_restore(f->directory, "one", other, NULL, &back), TERRACE_CORRUPT, "checksum");
  CHECK(back == NULL);
  terrace_pool_free(other);
  if (truncate(file, 5) != 0) exit(1);
  struct seen seen = {0};
  MUST(terrace_checkpoints_list(f->directory, count, &seen, NULL));
  CHECK(seen.whole == 0 && seen.damaged == 1);
  int calls = 0;
  MUST(terrace_checkpoints_list(f->directory, stop_at_once, &calls, NULL));
  CHECK(calls == 1);
  MUST(terrace_checkpoints_remove(f->directory, "one"));
}

/* Checksums are of 16 MiB each: the first and the last are damaged. */
static void all_damage_is_told(struct fixture* f) {
  const uint64_t bytes = 40 * MIB;
  terrace_pool* pool = ddr_pool(64 * MIB);
  terrace_tensor* big = bytes_tensor(pool, "big", bytes, 1);
  terrace_checkpoint* checkpoint = NULL;
  MUST(terrace_checkpoint_begin(f->directory, "big", pool, &big, 1, NULL, &checkpoint));
  MUST(terrace_checkpoint_wait(checkpoint, PATIENCE_NS));
  terrace_checkpoint_free(checkpoint);
  terrace_tensor_free(big);
  terrace_pool_free(pool);
  struct terrace_checkpoint_info info = {.size = sizeof info};
  MUST(terrace_checkpoints_find(f->directory, "big", &info));
  FILE* data = fopen(info.file, "r+b");
  if (data == NULL) exit(1);
  fseek(data, (long)MIB, SEEK_SET);
  fputc(0x55, data);
  fseek(data, -1, SEEK_END);
  fputc(0x55, data);
  fclose(data);
  struct terrace_checkpoint_verification verified = {.size = sizeof verified};
  MUST(terrace_checkpoints_verify(f->directory, "big", NULL, &verified));
  CHECK(verified.damaged_count == 2);
  if (verified.damaged_count == 2) {
    CHECK(verified.damaged[0].begin == 0 && verified.damaged[0].end == 16 * MIB);
    CHECK(verified.damaged[1].begin == 32 * MIB && verified.damaged[1].end == verified.bytes);
  }
  CHECK(verified.damaged_bytes == verified.bytes - 16 * MIB);
  MUST(terrace_checkpoints_remove(f->directory, "big"));
}

static void refused(struct fixture* f) {
  terrace_checkpoints* none = NULL;
  CHECK_FAILS(terrace_checkpoints_open("/nonexistent/x", 1, &none), TERRACE_NOT_FOUND, "/nonexistent/x");
  CHECK(terrace_error_errno() == ENOENT);
  CHECK_FAILS(terrace_checkpoints_open(NULL, 0, &none), TERRACE_INVALID_ARGUMENT, "path is NULL");
  CHECK_FAILS(terrace_checkpoints_list(f->directory, NULL, NULL, NULL), TERRACE_INVALID_ARGUMENT, "each is NULL");
  terrace_checkpoint* checkpoint = NULL;
  CHECK_FAILS(terrace_checkpoint_begin(f->directory, "one", f->pool, f->tensors, 3, NULL, &checkpoint),
              TERRACE_ALREADY_EXISTS, "'one'");
  CHECK_FAILS(terrace_checkpoint_begin(f->directory, "two", f->pool, NULL, 0, NULL, &checkpoint),
              TERRACE_INVALID_ARGUMENT, "no tensors");
  CHECK_FAILS(terrace_checkpoint_begin(f->directory, "two", f->pool, NULL, 1, NULL, &checkpoint),
              TERRACE_INVALID_ARGUMENT, "tensors is NULL");
  terrace_tensor* const holes[] = {f->tensors[0], NULL};
  CHECK_FAILS(terrace_checkpoint_begin(f->directory, "two", f->pool, holes, 2, NULL, &checkpoint),
              TERRACE_INVALID_ARGUMENT, "tensor 1 is NULL");
  const char* const odd[] = {"key", NULL};
  struct terrace_checkpoint_options options = {.size = sizeof options, .metadata = odd, .metadata_count = 1};
  CHECK_FAILS(terrace_checkpoint_begin(f->directory, "two", f->pool, f->tensors, 3, &options, &checkpoint),
              TERRACE_INVALID_ARGUMENT, "metadata: entry 1 is NULL");
  options.size = 3;
  CHECK_FAILS(terrace_checkpoint_begin(f->directory, "two", f->pool, f->tensors, 3, &options, &checkpoint),
              TERRACE_INVALID_ARGUMENT, "size is 3");
  CHECK(checkpoint == NULL && !terrace_checkpoint_done(NULL) && terrace_tensors_count(NULL) == 0);
  terrace_checkpoint_cancel(NULL);
  terrace_checkpoint_free(NULL);
  terrace_tensors_free(NULL);
  terrace_checkpoints_free(NULL);
}

/* The checkpoint keeps what it writes, whatever is freed meanwhile. */
static void freed_in_the_wrong_order(void) {
  struct fixture f;
  made(&f);
  terrace_checkpoint* checkpoint = NULL;
  MUST(terrace_checkpoint_begin(f.directory, "kept", f.pool, f.tensors, 3, NULL, &checkpoint));
  for (int i = 0; i < 3; ++i) terrace_tensor_free(f.tensors[i]);
  terrace_pool_free(f.pool);
  MUST(terrace_checkpoint_wait(checkpoint, PATIENCE_NS));
  struct terrace_checkpoint_verification verified = {.size = sizeof verified};
  MUST(terrace_checkpoints_verify(f.directory, "kept", NULL, &verified));
  CHECK(verified.damaged_bytes == 0);
  MUST(terrace_checkpoints_remove(f.directory, "kept"));
  MUST(terrace_checkpoints_remove(f.directory, "one"));
  f.pool = NULL;
  memset(f.tensors, 0, sizeof f.tensors);
  freed(&f);
  terrace_checkpoint_free(checkpoint);
}

void checkpoint_tests(void) {
  struct fixture f;
  made(&f);
  listed_and_found(&f);
  restored(&f);
  given_up(&f);
  files_in_and_out(&f);
  refused(&f);
  all_damage_is_told(&f);
  damage_is_told(&f);
  freed(&f);
  freed_in_the_wrong_order();
}
