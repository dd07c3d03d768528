// SPDX-License-Identifier: Apache-2.0
/* Tensor spaces over plain memory of this process: two holders of one file's locks. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/c_api/checks.h"

#define BYTES ((uint64_t)1 << 20)
static const uint64_t second = 1000 * 1000 * 1000;

struct holder {
  void* memory;
  terrace_space* space;
};

static struct holder attach(int fd) {
  struct holder holder = {.memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)};
  CHECK(holder.memory != MAP_FAILED);
  struct terrace_attach_options options = {.size = sizeof options, .claim = TERRACE_CLAIM_AT_ONCE};
  MUST(terrace_ownership_by_locks(fd, 0, &options.ownership));
  MUST(terrace_space_attach(holder.memory, BYTES, &options, &holder.space));
  terrace_ownership_free(options.ownership); /* the space keeps it */
  return holder;
}

static terrace_shared* make(terrace_space* space, const char* name) {
  const uint64_t dimensions[] = {4, 4};
  struct terrace_tensor_spec spec = {
      .size = sizeof spec, .name = name, .dtype = TERRACE_DTYPE_F32, .rank = 2, .dimensions = dimensions};
  terrace_shared* shared = NULL;
  MUST(terrace_space_create(space, &spec, NULL, &shared));
  return shared;
}

static void publish_and_read(terrace_space* writer, terrace_space* reader) {
  terrace_shared* mine = make(writer, "kv/17");
  terrace_shared* seen = NULL;
  MUST(terrace_space_open(reader, "kv/17", &seen));
  CHECK(terrace_shared_bytes(seen) == 64 && terrace_shared_dtype(seen) == TERRACE_DTYPE_F32);
  CHECK(terrace_shared_rank(seen) == 2 && terrace_shared_shape(seen)[0] == 4 && terrace_shared_double_buffered(seen));
  CHECK(terrace_shared_part(seen) == 0 && strcmp(terrace_shared_name(seen), "kv/17") == 0);
  char bytes[64] = {0}, copy[64] = {0};
  uint64_t version = 0, first = 0;
  CHECK_FAILS(terrace_shared_read(seen, copy, sizeof copy, 0, 0, &version), TERRACE_BUSY, "'kv/17'");

  terrace_write* write = NULL;
  MUST(terrace_shared_write(mine, 0, &write));
  CHECK(terrace_write_bytes(write) == 64);
  memset(terrace_write_data(write), 7, 64);
  MUST(terrace_write_publish(write, &first));
  CHECK(terrace_write_data(write) == NULL);
  CHECK_FAILS(terrace_write_publish(write, NULL), TERRACE_INVALID_ARGUMENT, "published already");
  terrace_write_free(write);

  MUST(terrace_shared_read(seen, copy, sizeof copy, 0, 0, &version));
  CHECK(version == first && copy[0] == 7 && copy[63] == 7);
  CHECK(terrace_shared_is_current(seen, version));
  CHECK_FAILS(terrace_shared_read(seen, copy, 63, 0, 0, &version), TERRACE_INVALID_ARGUMENT, "'kv/17'");
  memset(bytes, 9, sizeof bytes);
  MUST(terrace_shared_publish(mine, bytes, sizeof bytes, 0, &version));
  CHECK(version > first && !terrace_shared_is_current(seen, first));
  MUST(terrace_shared_wait_for_version(seen, first + 1, second, &version));
  CHECK_FAILS(terrace_shared_wait_for_version(seen, version + 100, 1, &version), TERRACE_BUSY, "kv/17");

  /* A write that is freed unpublished leaves the content. */
  MUST(terrace_shared_write(mine, 0, &write));
  memset(terrace_write_data(write), 1, 64);
  terrace_write_free(write);
  MUST(terrace_shared_version(seen, &version));
  MUST(terrace_shared_read(seen, copy, sizeof copy, 0, 0, &version));
  CHECK(copy[0] == 9);
  CHECK_FAILS(terrace_shared_write(seen, 0, &write), TERRACE_PERMISSION_DENIED, "kv/17");
  terrace_shared_free(mine);
  terrace_shared_free(seen);
}

static void everything_is_told(terrace_space* writer) {
  const uint64_t dimensions[] = {3, 5};
  struct terrace_tensor_spec spec = {.size = sizeof spec, .name = "told", .dtype = TERRACE_DTYPE_F32, .rank = 2,
                                     .dimensions = dimensions, .hint = TERRACE_HINT_KV_CACHE,
                                     .flags = TERRACE_FLAG_READ_MOSTLY};
  struct terrace_create_options shared_removal = {.size = sizeof shared_removal, .peers_may_remove = 1};
  terrace_shared *shared = NULL, *again = NULL;
  MUST(terrace_space_create(writer, &spec, &shared_removal, &shared));
  CHECK(terrace_shared_strides(shared)[0] == 5 && terrace_shared_strides(shared)[1] == 1);
  CHECK(terrace_shared_hint(shared) == TERRACE_HINT_KV_CACHE);
  CHECK(terrace_shared_flags(shared) == (TERRACE_FLAG_READ_MOSTLY | TERRACE_FLAG_PEERS_MAY_REMOVE));
  struct terrace_tensor_identity first = {.size = sizeof first}, later = {.size = sizeof later};
  MUST(terrace_shared_identity(shared, &first));
  MUST(terrace_space_open(writer, "told", &again));
  MUST(terrace_shared_identity(again, &later));
  CHECK(first.memory != NULL && memcmp(&first, &later, sizeof first) == 0);
  MUST(terrace_shared_remove(shared, 0));
  terrace_shared_free(shared);
  MUST(terrace_space_create(writer, &spec, NULL, &shared));
  MUST(terrace_shared_identity(shared, &later));
  CHECK(first.record == later.record && first.incarnation != later.incarnation);
  MUST(terrace_shared_remove(shared, 0));
  terrace_shared_free(shared);
  terrace_shared_free(again);
  CHECK_FAILS(terrace_shared_identity(NULL, &first), TERRACE_INVALID_ARGUMENT, "shared is NULL");
  CHECK(terrace_shared_strides(NULL) == NULL && terrace_shared_hint(NULL) == 0 && terrace_shared_flags(NULL) == 0);

  CHECK(terrace_space_parts(writer) == 2 && terrace_space_parts(NULL) == 0);
  CHECK(terrace_space_coherence(writer) == TERRACE_SPACE_COHERENT && terrace_space_coherence(NULL) == -1);
  const uint64_t largest = terrace_space_largest_free_bytes(writer);
  CHECK(largest > 0 && largest <= terrace_space_free_bytes(writer) && terrace_space_largest_free_bytes(NULL) == 0);
  MUST(terrace_space_health(writer));
  CHECK_FAILS(terrace_space_health(NULL), TERRACE_INVALID_ARGUMENT, "space is NULL");
}

/* Who attaches without saying more owns nothing until it writes. */
static void owns_a_part_once_it_writes(int fd, void* memory) {
  struct terrace_space_options one = {.size = sizeof one, .parts = 1, .records_per_part = 64};
  MUST(terrace_space_format(memory, BYTES, &one));
  struct holder writer = attach(fd);
  terrace_shared* shared = make(writer.space, "t");
  char bytes[64] = {5};
  MUST(terrace_shared_publish(shared, bytes, sizeof bytes, 0, NULL));
  terrace_shared_free(shared);
  terrace_space_free(writer.space);
  munmap(writer.memory, BYTES);

  struct terrace_attach_options options = {.size = sizeof options};
  MUST(terrace_ownership_by_locks(fd, 0, &options.ownership));
  terrace_space *reader = NULL, *heir = NULL;
  MUST(terrace_space_attach(memory, BYTES, &options, &reader));
  CHECK(terrace_space_free_bytes(reader) > 0);
  MUST(terrace_space_open(reader, "t", &shared));
  terrace_pin* pin = NULL;
  MUST(terrace_shared_pin(shared, 0, &pin));
  CHECK(terrace_space_part(reader) == -1 && terrace_space_seat(reader) == 0);
  terrace_ownership_free(options.ownership);
  MUST(terrace_ownership_by_locks(fd, 0, &options.ownership));
  options.claim = 2;
  CHECK_FAILS(terrace_space_attach(memory, BYTES, &options, &heir), TERRACE_INVALID_ARGUMENT, "TERRACE_CLAIM_");
  options.claim = TERRACE_CLAIM_WHEN_NEEDED;
  MUST(terrace_space_attach(memory, BYTES, &options, &heir));
  terrace_ownership_free(options.ownership);
  terrace_shared* theirs = NULL;
  MUST(terrace_space_open(heir, "t", &theirs));
  MUST(terrace_shared_publish(theirs, bytes, sizeof bytes, 0, NULL));
  CHECK(terrace_space_part(heir) == 0 && terrace_space_seat(heir) == -1);
  CHECK_FAILS(terrace_shared_publish(shared, bytes, sizeof bytes, 0, NULL), TERRACE_PERMISSION_DENIED, "'t'");
  terrace_pin_free(pin);
  terrace_shared_free(shared);
  terrace_shared_free(theirs);
  terrace_space_free(reader);
  terrace_space_free(heir);
}

static void pins_hold(terrace_space* writer, terrace_space* reader) {
  terrace_shared *mine = NULL, *seen = NULL;
  MUST(terrace_space_open(writer, "kv/17", &mine));
  MUST(terrace_space_open(reader, "kv/17", &seen));
  terrace_pin* pin = NULL;
  MUST(terrace_shared_pin(seen, 0, &pin));
  CHECK(terrace_pin_bytes(pin) == 64 && terrace_pin_version(pin) > 0);
  CHECK(((const char*)terrace_pin_data(pin))[0] == 9);
  CHECK_FAILS(terrace_shared_remove(mine, 0), TERRACE_BUSY, "kv/17");
  CHECK_FAILS(terrace_shared_remove(seen, 0), TERRACE_PERMISSION_DENIED, "kv/17");
  terrace_pin_free(pin);
  MUST(terrace_shared_remove(mine, second));
  CHECK_FAILS(terrace_shared_pin(seen, 0, &pin), TERRACE_NOT_FOUND, "kv/17");
  terrace_shared_free(mine);
  terrace_shared_free(seen);
}

static int note(void* context, terrace_shared* shared) {
  *(unsigned*)context |= 1u << (terrace_shared_name(shared)[0] - 'a');
  return 0;
}

static int note_one(void* context, terrace_shared* shared) {
  note(context, shared);
  return 1;
}

static void lists(terrace_space* writer, terrace_space* reader) {
  terrace_shared* a = make(writer, "a");
  terrace_shared* b = make(reader, "b");
  unsigned seen = 0;
  MUST(terrace_space_list(reader, note, &seen));
  CHECK(seen == 3);
  seen = 0;
  MUST(terrace_space_list(reader, note_one, &seen));
  CHECK(seen == 1 || seen == 2);
  terrace_shared* twice = NULL;
  const uint64_t one = 1;
  struct terrace_tensor_spec spec = {
      .size = sizeof spec, .name = "a", .dtype = TERRACE_DTYPE_U8, .rank = 1, .dimensions = &one};
  CHECK_FAILS(terrace_space_create(reader, &spec, NULL, &twice), TERRACE_ALREADY_EXISTS, "'a'");
  CHECK_FAILS(terrace_space_open(reader, "c", &twice), TERRACE_NOT_FOUND, "'c'");
  struct terrace_create_options single = {.size = sizeof single, .single_buffered = 1};
  spec.name = "single";
  MUST(terrace_space_create(reader, &spec, &single, &twice));
  CHECK(!terrace_shared_double_buffered(twice));
  terrace_shared_free(twice);
  terrace_shared_free(a);
  terrace_shared_free(b);
}

void space_tests(void) {
  const int fd = memfd_create("space", MFD_CLOEXEC);
  CHECK(fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0);
  void* memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  struct terrace_space_options options = {.size = sizeof options, .parts = 2, .records_per_part = 64};
  options.coherence = 2;
  CHECK_FAILS(terrace_space_format(memory, BYTES, &options), TERRACE_INVALID_ARGUMENT, "2 is no coherence");
  options.coherence = TERRACE_SPACE_COHERENT;
  options.checksums = -1;
  CHECK_FAILS(terrace_space_format(memory, BYTES, &options), TERRACE_INVALID_ARGUMENT, "CHECKSUMS");
  options.checksums = TERRACE_CHECKSUMS_ON;
  CHECK_FAILS(terrace_space_format(memory, 64, &options), TERRACE_CAPACITY_EXHAUSTED, "need at least");
  MUST(terrace_space_format(memory, BYTES, &options));
  terrace_ownership* none = NULL;
  CHECK_FAILS(terrace_ownership_by_locks(-1, 0, &none), TERRACE_INVALID_ARGUMENT, "-1");

  struct holder writer = attach(fd), reader = attach(fd);
  CHECK(terrace_space_part(writer.space) == 0 && terrace_space_part(reader.space) == 1);
  CHECK(terrace_space_free_bytes(writer.space) > 0);
  terrace_space* third = NULL;
  struct terrace_attach_options all_taken = {.size = sizeof all_taken, .claim = TERRACE_CLAIM_AT_ONCE};
  MUST(terrace_ownership_by_locks(fd, 0, &all_taken.ownership));
  CHECK_FAILS(terrace_space_attach(memory, BYTES, &all_taken, &third), TERRACE_BUSY, "part");
  terrace_ownership_free(all_taken.ownership);
  MUST(terrace_space_attach(memory, BYTES, NULL, &third)); /* only reads, by copy */
  CHECK(terrace_space_part(third) == -1);

  publish_and_read(writer.space, reader.space);
  everything_is_told(writer.space);
  pins_hold(writer.space, reader.space);
  lists(writer.space, reader.space);

  /* In any order: what was taken from a space keeps it. */
  terrace_shared* last = make(writer.space, "last");
  terrace_write* write = NULL;
  MUST(terrace_shared_write(last, 0, &write));
  terrace_space_free(writer.space);
  terrace_shared_free(last);
  memset(terrace_write_data(write), 3, terrace_write_bytes(write));
  MUST(terrace_write_publish(write, NULL));
  terrace_write_free(write);
  MUST(terrace_space_open(third, "last", &last));
  char copy[64];
  MUST(terrace_shared_read(last, copy, sizeof copy, 0, second, NULL));
  CHECK(copy[5] == 3);
  terrace_shared_free(last);
  terrace_space_free(third);
  terrace_space_free(reader.space);
  munmap(writer.memory, BYTES);
  munmap(reader.memory, BYTES);
  owns_a_part_once_it_writes(fd, memory);
  munmap(memory, BYTES);
  close(fd);
}
