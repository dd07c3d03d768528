// SPDX-License-Identifier: Apache-2.0
/* KV spaces in a file of this process: two holders that put, one that only gets copies. */
#define _GNU_SOURCE
#include "terrace/kv_c.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/c_api/checks.h"

#define BYTES ((uint64_t)16 << 20)
#define BLOCK ((uint64_t)64 << 10)
static const uint64_t second = 1000 * 1000 * 1000;

static terrace_kv* attach(int fd) {
  terrace_kv* kv = NULL;
  MUST(terrace_kv_attach_fd(fd, NULL, &kv));
  return kv;
}

static terrace_code put_text(terrace_kv* kv, const char* name_space, const char* key, const char* text) {
  return terrace_kv_put(kv, name_space, key, strlen(key), text, strlen(text), NULL);
}

static int is_there(terrace_kv* kv, const char* name_space, const char* key) {
  const struct terrace_kv_key asked = {key, strlen(key)};
  unsigned char found = 2;
  MUST(terrace_kv_exists(kv, name_space, &asked, 1, &found));
  return found;
}

static void options_are_checked(int fd) {
  struct terrace_kv_format_options options = {.size = sizeof options};
  options.checksums = 3;
  CHECK_FAILS(terrace_kv_format_fd(fd, &options), TERRACE_INVALID_ARGUMENT, "CHECKSUMS");
  options.checksums = TERRACE_CHECKSUMS_ON;
  options.coherence = 2;
  CHECK_FAILS(terrace_kv_format_fd(fd, &options), TERRACE_INVALID_ARGUMENT, "2 is no coherence");
  options.coherence = TERRACE_SPACE_COHERENT;
  options.reserved = 1;
  CHECK_FAILS(terrace_kv_format_fd(fd, &options), TERRACE_VERSION_MISMATCH, "reserved");
  options.reserved = 0;
  options.size = 3;
  CHECK_FAILS(terrace_kv_format_fd(fd, &options), TERRACE_INVALID_ARGUMENT, "size");
  CHECK_FAILS(terrace_kv_format_fd(-1, NULL), TERRACE_INVALID_ARGUMENT, "-1 is no descriptor");
  CHECK_FAILS(terrace_kv_format(NULL, BYTES, NULL), TERRACE_INVALID_ARGUMENT, "memory is NULL");
  int pipes[2];
  CHECK(pipe(pipes) == 0);
  CHECK_FAILS(terrace_kv_format_fd(pipes[0], NULL), TERRACE_INVALID_ARGUMENT, "no file with bytes");
  close(pipes[0]);
  close(pipes[1]);
  terrace_kv* none = NULL;
  CHECK_FAILS(terrace_kv_attach_fd(-1, NULL, &none), TERRACE_INVALID_ARGUMENT, "-1 is no descriptor");
  CHECK_FAILS(terrace_kv_attach_fd(fd, NULL, NULL), TERRACE_INVALID_ARGUMENT, "kv is NULL");
  struct terrace_kv_format_options all = {.size = sizeof all, .parts = 64, .block_bytes = BLOCK};
  CHECK(terrace_kv_format_fd(fd, &all) != TERRACE_INVALID_ARGUMENT); /* without seats, not with 24 */

  char name[TERRACE_KV_NAMESPACE_BYTES_MAX + 1];
  MUST(terrace_kv_namespace("t", "m/7b", "tok", "l", "bf16", name, sizeof name));
  CHECK(strcmp(name, "t/m%2F7b/tok/l/bf16") == 0);
  CHECK_FAILS(terrace_kv_namespace("t", "m", "tok", "l", "bf16", name, 4), TERRACE_LIMIT_EXCEEDED, "15 bytes, not 4");
  CHECK_FAILS(terrace_kv_namespace("t", "m", "tok", "l", "d", NULL, 4), TERRACE_INVALID_ARGUMENT, "into is NULL");
}

static void put_and_got(terrace_kv* writer, terrace_kv* reader) {
  char copy[64] = {0};
  uint64_t bytes = 77;
  CHECK(terrace_kv_part(writer) == -1 && terrace_kv_part(NULL) == -1);
  CHECK_FAILS(terrace_kv_get(reader, "n", "k", 1, copy, sizeof copy, &bytes), TERRACE_NOT_FOUND, "");
  CHECK(bytes == 77);
  MUST(put_text(writer, "n", "k", "hello"));
  CHECK(terrace_kv_part(writer) >= 0);
  CHECK_FAILS(put_text(reader, "n", "k", "other"), TERRACE_ALREADY_EXISTS, "");
  MUST(terrace_kv_get(reader, "n", "k", 1, copy, sizeof copy, &bytes));
  CHECK(bytes == 5 && memcmp(copy, "hello", 5) == 0);
  MUST(terrace_kv_get(reader, "n", "k", 1, copy, 5, NULL));
  CHECK_FAILS(terrace_kv_get(reader, "n", "k", 1, copy, 4, &bytes), TERRACE_INVALID_ARGUMENT, "5");
  MUST(terrace_kv_length(reader, "n", "k", 1, &bytes));
  CHECK(bytes == 5);
  /* Namespaces do not meet; NULL and "" are one of them. */
  CHECK(!is_there(reader, "m", "k") && !is_there(reader, NULL, "k"));
  MUST(put_text(reader, NULL, "k", "without"));
  CHECK(is_there(writer, "", "k"));
  /* A key has any bytes. */
  MUST(terrace_kv_put(writer, "n", "\0\xff\0", 3, "x", 1, NULL));
  MUST(terrace_kv_length(reader, "n", "\0\xff\0", 3, &bytes));
  CHECK_FAILS(terrace_kv_length(reader, "n", "\0\xff", 2, &bytes), TERRACE_NOT_FOUND, "");
  CHECK_FAILS(terrace_kv_length(reader, "n", "", 0, &bytes), TERRACE_INVALID_ARGUMENT, "");
  CHECK_FAILS(terrace_kv_length(reader, "n", NULL, 1, &bytes), TERRACE_INVALID_ARGUMENT, "key is NULL");
  CHECK_FAILS(terrace_kv_put(writer, "\x01", "k", 1, "x", 1, NULL), TERRACE_INVALID_ARGUMENT, "");
  CHECK_FAILS(terrace_kv_put(writer, "n", "l", 1, NULL, 1, NULL), TERRACE_INVALID_ARGUMENT, "data is NULL");
}

static void several_at_once(terrace_kv* writer, terrace_kv* reader) {
  struct terrace_kv_put_options chained = {.size = sizeof chained, .parent = "a", .parent_bytes = 1, .ttl_s = 3600};
  struct terrace_kv_put_one puts[] = {{.key = {"a", 1}, .data = "1", .bytes = 1},
                                      {.key = {"b", 1}, .data = "22", .bytes = 2, .options = &chained},
                                      {.key = {"k", 1}, .data = "3", .bytes = 1}};
  MUST(terrace_kv_put_many(writer, "n", puts, 3));
  CHECK(puts[0].code == TERRACE_OK && puts[1].code == TERRACE_OK && puts[2].code == TERRACE_ALREADY_EXISTS);
  chained.checksum = -1;
  CHECK_FAILS(terrace_kv_put_many(writer, "n", puts, 3), TERRACE_INVALID_ARGUMENT, "CHECKSUMS");

  const struct terrace_kv_key keys[] = {{"a", 1}, {"b", 1}, {"c", 1}, {"k", 1}};
  unsigned char found[4] = {9, 9, 9, 9};
  MUST(terrace_kv_exists(reader, "n", keys, 4, found));
  CHECK(found[0] == 1 && found[1] == 1 && found[2] == 0 && found[3] == 1);
  uint64_t there = 0;
  MUST(terrace_kv_prefix(reader, "n", keys, 4, &there));
  CHECK(there == 2);
  MUST(terrace_kv_prefix(reader, "n", NULL, 0, &there));
  CHECK(there == 0);
  CHECK_FAILS(terrace_kv_exists(reader, "n", NULL, 1, found), TERRACE_INVALID_ARGUMENT, "keys is NULL");

  char one[8] = {0}, two[8] = {0}, small[1] = {0};
  struct terrace_kv_get_one gets[] = {{.key = {"b", 1}, .into = one, .into_bytes = sizeof one},
                                      {.key = {"c", 1}, .into = two, .into_bytes = sizeof two},
                                      {.key = {"b", 1}, .into = small, .into_bytes = sizeof small},
                                      {.key = {"a", 1}, .into = two, .into_bytes = sizeof two}};
  MUST(terrace_kv_get_many(reader, "n", gets, 4));
  CHECK(gets[0].code == TERRACE_OK && gets[0].bytes == 2 && memcmp(one, "22", 2) == 0);
  CHECK(gets[1].code == TERRACE_NOT_FOUND && gets[1].bytes == 0);
  CHECK(gets[2].code == TERRACE_INVALID_ARGUMENT && gets[2].bytes == 0);
  CHECK(gets[3].code == TERRACE_OK && gets[3].bytes == 1 && two[0] == '1');
  gets[1].into = NULL;
  CHECK_FAILS(terrace_kv_get_many(reader, "n", gets, 4), TERRACE_INVALID_ARGUMENT, "into is NULL");
}

static void in_place(terrace_kv* writer, terrace_kv* reader) {
  terrace_kv_write* write = NULL;
  MUST(terrace_kv_begin_put(writer, "n", "big", 3, BLOCK, NULL, &write));
  CHECK(terrace_kv_write_bytes(write) == BLOCK && (uintptr_t)terrace_kv_write_data(write) % 64 == 0);
  memset(terrace_kv_write_data(write), 5, BLOCK);
  CHECK(!is_there(reader, "n", "big"));
  MUST(terrace_kv_write_publish(write));
  CHECK(terrace_kv_write_data(write) == NULL && terrace_kv_write_bytes(write) == BLOCK);
  CHECK_FAILS(terrace_kv_write_publish(write), TERRACE_INVALID_ARGUMENT, "published already");
  CHECK_FAILS(terrace_kv_write_fill(write, "x", 1), TERRACE_INVALID_ARGUMENT, "published already");
  terrace_kv_write_free(write);

  terrace_kv_view* view = NULL;
  CHECK_FAILS(terrace_kv_get_view(reader, "n", "none", 4, &view), TERRACE_NOT_FOUND, "");
  MUST(terrace_kv_get_view(reader, "n", "big", 3, &view));
  CHECK(terrace_kv_view_bytes(view) == BLOCK && ((const char*)terrace_kv_view_data(view))[BLOCK - 1] == 5);
  CHECK_FAILS(terrace_kv_erase(writer, "n", "big", 3, second / 100), TERRACE_BUSY, "");
  terrace_kv_view_free(view);
  CHECK(terrace_kv_view_data(NULL) == NULL && terrace_kv_view_bytes(NULL) == 0);

  /* Given up; then filled by the library, and put in another call first. */
  MUST(terrace_kv_begin_put(writer, "n", "late", 4, 4, NULL, &write));
  terrace_kv_write_free(write);
  CHECK(!is_there(reader, "n", "late"));
  MUST(terrace_kv_begin_put(writer, "n", "late", 4, 4, NULL, &write));
  MUST(terrace_kv_write_fill(write, "mine", 4));
  MUST(put_text(writer, "n", "late", "first"));
  CHECK_FAILS(terrace_kv_write_publish(write), TERRACE_ALREADY_EXISTS, "");
  terrace_kv_write_free(write);
  uint64_t bytes = 0;
  MUST(terrace_kv_length(writer, "n", "late", 4, &bytes));
  CHECK(bytes == 5);
  CHECK(terrace_kv_write_data(NULL) == NULL && terrace_kv_write_bytes(NULL) == 0);
}

struct seen {
  unsigned blocks, with_parent, in_n;
  int stop;
};

static int note(void* context, const struct terrace_kv_block_info* info) {
  struct seen* seen = context;
  ++seen->blocks;
  seen->with_parent += info->has_parent ? 1 : 0;
  seen->in_n += strcmp(info->name_space, "n") == 0 ? 1 : 0;
  if (info->size != sizeof *info || info->bytes == 0) ++failed_checks;
  if (info->key_bytes == 1 && memcmp(info->key, "b", 1) == 0) CHECK(info->expires_unix_s > 0 && info->has_parent);
  return seen->stop;
}

static void everything_is_told(terrace_kv* writer, terrace_kv* reader) {
  struct seen seen = {0};
  MUST(terrace_kv_list(reader, note, &seen));
  CHECK(seen.blocks == 7 && seen.in_n == 6 && seen.with_parent == 1);
  seen = (struct seen){.stop = 1};
  MUST(terrace_kv_list(reader, note, &seen));
  CHECK(seen.blocks == 1);
  CHECK_FAILS(terrace_kv_list(reader, NULL, &seen), TERRACE_INVALID_ARGUMENT, "each is NULL");

  struct terrace_kv_stat stat = {.size = sizeof stat};
  MUST(terrace_kv_get_stat(writer, &stat));
  CHECK(stat.blocks == 7 && stat.block_bytes > BLOCK && stat.part_count == 4 && stat.checksums == 1);
  CHECK(stat.coherence == TERRACE_SPACE_COHERENT && stat.data_bytes > 0 && stat.max_block_bytes >= BLOCK);
  const int part = terrace_kv_part(writer);
  CHECK(stat.parts[part]->part == (uint32_t)part && strcmp(stat.parts[part]->state, "owned") == 0);
  CHECK(stat.parts[part]->blocks > 0 && stat.parts[part]->size == sizeof *stat.parts[part]);
  struct terrace_kv_counters counters = {.size = sizeof counters};
  MUST(terrace_kv_get_counters(reader, &counters));
  CHECK(counters.hits > 0 && counters.misses > 0 && counters.hit_bytes > 0 && counters.puts > 0);
  struct terrace_kv_verified verified = {.size = sizeof verified};
  MUST(terrace_kv_verify(reader, &verified));
  CHECK(verified.blocks == 7 && verified.bytes > BLOCK && verified.wrong_count == 0 && verified.changed == 0);
  stat.size = 2;
  CHECK_FAILS(terrace_kv_get_stat(writer, &stat), TERRACE_INVALID_ARGUMENT, "size");
  CHECK_FAILS(terrace_kv_get_stat(NULL, &stat), TERRACE_INVALID_ARGUMENT, "kv is NULL");
  MUST(terrace_kv_health(writer));
}

static void a_policy_is_what_was_said(terrace_kv* writer, terrace_kv* reader) {
  const struct terrace_kv_budget said[] = {{"n", 1 << 20, 0}, {NULL, 1 << 30, 0}};
  const struct terrace_kv_kept stays[] = {{"n", NULL, 0}, {"", "k\0", 2}};
  MUST(terrace_kv_set_policy(writer, said, 2, stays, 2));
  const struct terrace_kv_budget* budgets = NULL;
  const struct terrace_kv_kept* kept = NULL;
  size_t budget_count = 0, kept_count = 0;
  MUST(terrace_kv_get_policy(reader, &budgets, &budget_count, &kept, &kept_count));
  CHECK(budget_count == 2 && strcmp(budgets[0].namespaces, "n") == 0 && budgets[0].bytes == 1 << 20);
  CHECK(budgets[0].used_bytes > 0 && budgets[1].used_bytes > budgets[0].used_bytes);
  CHECK(kept_count == 2 && kept[0].key_bytes == 0 && kept[1].key_bytes == 2 && memcmp(kept[1].key, "k", 2) == 0);
  struct terrace_kv_stat stat = {.size = sizeof stat};
  MUST(terrace_kv_get_stat(reader, &stat));
  CHECK(stat.kept_bytes > 0 && stat.kept_bytes <= budgets[0].used_bytes);
  CHECK_FAILS(terrace_kv_set_policy(writer, said, 1, NULL, 1), TERRACE_INVALID_ARGUMENT, "kept is NULL");
  const struct terrace_kv_budget none[] = {{"n", 0, 0}};
  CHECK_FAILS(terrace_kv_set_policy(writer, none, 1, NULL, 0), TERRACE_INVALID_ARGUMENT, "is 0");
  MUST(terrace_kv_set_policy(writer, NULL, 0, NULL, 0));
  MUST(terrace_kv_get_policy(reader, &budgets, &budget_count, &kept, &kept_count));
  CHECK(budget_count == 0 && kept_count == 0);
}

static void erased_and_flushed(terrace_kv* writer, terrace_kv* reader) {
  MUST(terrace_kv_erase(reader, "n", "big", 3, 5 * second));
  CHECK_FAILS(terrace_kv_erase(reader, "n", "big", 3, second), TERRACE_NOT_FOUND, "");
  uint64_t gone = 0;
  MUST(terrace_kv_flush(writer, "n", 5 * second, &gone));
  CHECK(gone == 5 && !is_there(reader, "n", "k") && is_there(reader, NULL, "k"));
  MUST(terrace_kv_flush_all(writer, 5 * second, NULL));
  CHECK(!is_there(reader, NULL, "k"));
  MUST(put_text(writer, NULL, "again", "x"));
  MUST(terrace_kv_evict(writer, 1, &gone));
  CHECK(gone == 1 && !is_there(reader, NULL, "again"));
  terrace_kv_tend(writer);
  terrace_kv_tend(NULL);
}

static void who_has_no_ownership_gets_copies(int fd) {
  void* memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  terrace_kv* kv = NULL;
  MUST(terrace_kv_attach(memory, BYTES, NULL, &kv));
  char copy[8];
  terrace_kv_view* view = NULL;
  MUST(terrace_kv_get(kv, NULL, "last", 4, copy, sizeof copy, NULL));
  CHECK_FAILS(terrace_kv_get_view(kv, NULL, "last", 4, &view), TERRACE_PERMISSION_DENIED, "");
  CHECK_FAILS(put_text(kv, NULL, "mine", "x"), TERRACE_PERMISSION_DENIED, "");
  terrace_kv_free(kv);

  struct terrace_kv_attach_options options = {.size = sizeof options, .reads_only = 1, .tended_by_caller = 1};
  MUST(terrace_ownership_by_locks(fd, 0, &options.ownership));
  MUST(terrace_kv_attach(memory, BYTES, &options, &kv));
  terrace_ownership_free(options.ownership); /* the space keeps it */
  MUST(terrace_kv_get_view(kv, NULL, "last", 4, &view));
  CHECK_FAILS(put_text(kv, NULL, "mine", "x"), TERRACE_PERMISSION_DENIED, "");
  terrace_kv_view_free(view);
  terrace_kv_free(kv);
  munmap(memory, BYTES);
}

/* What the space has no room for is found in the folder, which outlives the space. */
static void evicted_ones_are_in_a_folder(int fd) {
  enum { blocks = 300 };
  char folder[] = "/tmp/terrace-c-spill-XXXXXX", name[64];
  CHECK(mkdtemp(folder) != NULL);
  struct terrace_kv_format_options small = {.size = sizeof small, .parts = 2, .block_bytes = BLOCK};
  MUST(terrace_kv_format_fd(fd, &small));
  struct terrace_kv_attach_options options = {.size = sizeof options, .spill_folder = "/nowhere/folder"};
  terrace_kv* kv = NULL;
  CHECK_FAILS(terrace_kv_attach_fd(fd, &options, &kv), TERRACE_NOT_FOUND, "/nowhere/folder");
  CHECK(kv == NULL);
  options.spill_folder = folder;
  CHECK_FAILS(terrace_kv_attach_fd(fd, &options, &kv), TERRACE_INVALID_ARGUMENT, "bytes");
  options.spill_bytes = (uint64_t)128 << 20;
  MUST(terrace_kv_attach_fd(fd, &options, &kv));
  char* const block = malloc(BLOCK);
  CHECK(block != NULL);
  for (int number = 0; number < blocks; ++number) {
    memset(block, number, BLOCK);
    snprintf(name, sizeof name, "block %d", number);
    MUST(terrace_kv_put(kv, "n", name, strlen(name), block, BLOCK, NULL));
  }
  struct terrace_kv_counters counters = {.size = sizeof counters};
  MUST(terrace_kv_get_counters(kv, &counters));
  CHECK(counters.evicted > 0 && counters.spilled > 0);
  terrace_kv_free(kv);
  options.spill_bytes = 0; /* as it was made */
  MUST(terrace_kv_attach_fd(fd, &options, &kv));
  int found = 0;
  for (int number = 0; number < blocks; ++number) {
    uint64_t bytes = 0;
    snprintf(name, sizeof name, "block %d", number);
    if (terrace_kv_get(kv, "n", name, strlen(name), block, BLOCK, &bytes) != TERRACE_OK) continue;
    CHECK(bytes == BLOCK && (unsigned char)block[0] == (unsigned char)number && block[BLOCK - 1] == block[0]);
    ++found;
  }
  MUST(terrace_kv_get_counters(kv, &counters));
  CHECK(counters.spill_hits > 0 && (uint64_t)found == counters.hits);
  CHECK(counters.spill_hits < counters.hits);
  free(block);
  terrace_kv_free(kv);
  options.spill_folder = NULL;
  MUST(terrace_kv_attach_fd(fd, &options, &kv));
  terrace_kv_free(kv);
  snprintf(name, sizeof name, "rm -r %s", folder);
  CHECK(system(name) == 0);
}

static void hot_blocks_have_local_copies(int fd) {
  struct terrace_kv_attach_options options = {.size = sizeof options, .reads_only = 1, .local_bytes = 1};
  terrace_kv* kv = NULL;
  CHECK_FAILS(terrace_kv_attach_fd(fd, &options, &kv), TERRACE_INVALID_ARGUMENT, "1 MiB");
  options.local_bytes = 1 << 20;
  MUST(terrace_kv_attach_fd(fd, &options, &kv));
  for (int time = 0; time < 4; ++time) {
    char copy[4];
    MUST(terrace_kv_get(kv, NULL, "last", 4, copy, sizeof copy, NULL));
    CHECK(memcmp(copy, "last", 4) == 0);
  }
  struct terrace_kv_counters counters = {.size = sizeof counters};
  MUST(terrace_kv_get_counters(kv, &counters));
  CHECK(counters.local_hits == 2 && counters.local_hit_bytes == 8 && counters.local_copied == 1);
  CHECK(counters.local_evicted == 0 && counters.local_stale == 0);
  struct terrace_kv_stat stat = {.size = sizeof stat};
  MUST(terrace_kv_get_stat(kv, &stat));
  CHECK(stat.local_blocks == 1 && stat.local_bytes >= 4 && stat.local_max_bytes == 1 << 20);
  terrace_kv_view* view = NULL;
  MUST(terrace_kv_get_view(kv, NULL, "last", 4, &view));
  terrace_kv_free(kv);
  CHECK(memcmp(terrace_kv_view_data(view), "last", 4) == 0);
  terrace_kv_view_free(view);
}

static int new_file(char* path) {
  strcpy(path, "/dev/shm/terrace-kv-XXXXXX");
  const int fd = mkstemp(path);
  CHECK(fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0);
  return fd;
}

static void members_come_and_go(void) {
  char first_path[64], second_path[64];
  const int first = new_file(first_path), other = new_file(second_path);
  MUST(terrace_kv_format_fd(first, NULL));
  terrace_kv* kv = attach(first);
  MUST(put_text(kv, NULL, "k", "v"));
  MUST(terrace_kv_grow(kv, second_path));
  CHECK_FAILS(terrace_kv_grow(kv, "a-lease"), TERRACE_UNAVAILABLE, "no session");
  CHECK_FAILS(terrace_kv_grow(kv, "/dev/null"), TERRACE_INVALID_ARGUMENT, "neither a file nor a dax device");
  CHECK_FAILS(terrace_kv_grow(kv, "/nowhere/at-all"), TERRACE_NOT_FOUND, "/nowhere/at-all");
  CHECK_FAILS(terrace_kv_grow(kv, NULL), TERRACE_INVALID_ARGUMENT, "member is NULL");
  struct terrace_kv_stat stat = {.size = sizeof stat};
  MUST(terrace_kv_get_stat(kv, &stat));
  CHECK(stat.member_count == 2 && stat.part_count == 16 && stat.parts[8]->member == 1);
  CHECK(strcmp(stat.members[0]->where, first_path) == 0 && strcmp(stat.members[1]->where, second_path) == 0);
  CHECK(strcmp(stat.members[1]->state, "filling") == 0 && stat.members[1]->data_bytes > 0);
  CHECK(stat.members[0]->blocks == 1 && stat.members[0]->size == sizeof *stat.members[0]);
  CHECK(strcmp(stat.members[0]->loss, "") == 0);
  struct terrace_kv_counters counters = {.size = sizeof counters};
  MUST(terrace_kv_get_counters(kv, &counters));
  CHECK(counters.members_joined == 1 && counters.members_lost == 0);

  terrace_kv* by_second = attach(other);
  CHECK(is_there(by_second, NULL, "k"));
  terrace_kv_free(by_second);
  struct terrace_kv_shrunk shrunk = {.size = sizeof shrunk};
  MUST(terrace_kv_shrink(kv, first_path, second, &shrunk));
  CHECK(shrunk.moved == 1 && shrunk.moved_bytes == 1 && shrunk.left_behind == 0 && shrunk.holders == 0);
  CHECK(is_there(kv, NULL, "k"));
  CHECK_FAILS(terrace_kv_shrink(kv, second_path, 0, NULL), TERRACE_INVALID_ARGUMENT, "last member");
  terrace_kv_free(kv);

  static _Alignas(4096) char memory[BYTES];
  MUST(terrace_kv_format(memory, BYTES, NULL));
  MUST(terrace_kv_attach(memory, BYTES, NULL, &kv));
  CHECK_FAILS(terrace_kv_grow(kv, second_path), TERRACE_UNSUPPORTED, "bare memory");
  terrace_kv_free(kv);
  CHECK_FAILS(terrace_kv_attach_lease(NULL, "a", NULL, &kv), TERRACE_INVALID_ARGUMENT, "session is NULL");
  unlink(first_path);
  unlink(second_path);
  close(first);
  close(other);
}

void kv_tests(void) {
  const int fd = memfd_create("kv", MFD_CLOEXEC);
  CHECK(fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0);
  options_are_checked(fd);
  struct terrace_kv_format_options options = {.size = sizeof options, .parts = 4, .block_bytes = BLOCK,
                                              .checksums = TERRACE_CHECKSUMS_ON};
  MUST(terrace_kv_format_fd(fd, &options));
  terrace_kv *writer = attach(fd), *reader = attach(fd);
  put_and_got(writer, reader);
  several_at_once(writer, reader);
  in_place(writer, reader);
  everything_is_told(writer, reader);
  a_policy_is_what_was_said(writer, reader);
  erased_and_flushed(writer, reader);

  /* In any order: what was taken from a space keeps it, and its memory. */
  terrace_kv_write* write = NULL;
  terrace_kv_view* view = NULL;
  MUST(terrace_kv_begin_put(writer, NULL, "last", 4, 4, NULL, &write));
  terrace_kv_free(writer);
  MUST(terrace_kv_write_fill(write, "last", 4));
  MUST(terrace_kv_write_publish(write));
  terrace_kv_write_free(write);
  MUST(terrace_kv_get_view(reader, NULL, "last", 4, &view));
  terrace_kv_free(reader);
  CHECK(memcmp(terrace_kv_view_data(view), "last", 4) == 0);
  terrace_kv_view_free(view);
  terrace_kv_free(NULL);
  who_has_no_ownership_gets_copies(fd);
  hot_blocks_have_local_copies(fd);
  evicted_ones_are_in_a_folder(fd);
  close(fd);
  members_come_and_go();
}
