// SPDX-License-Identifier: Apache-2.0
/* The C interface of KV spaces: a cache of immutable blocks, found by key, that processes of several hosts
 * share (kv_space.h). Pure C, as terrace_c.h, whose rules for codes, options, results, handles and threads
 * hold here.
 *
 *     struct terrace_kv_attach_options attach = {.size = sizeof attach};
 *     terrace_ownership_by_manager(lease, &attach.ownership);
 *     terrace_kv* kv;
 *     if (terrace_kv_attach_mapping(mapping, &attach, &kv) != TERRACE_OK) return fail(terrace_error_text());
 *     if (terrace_kv_put(kv, "llama", key, 32, block, bytes, NULL) == TERRACE_CAPACITY_EXHAUSTED) go_on_without();
 *
 * Keys      1 to 512 bytes of any value. A struct terrace_kv_key has them where a call takes several.
 * Namespaces  are texts of at most 255 bytes; NULL or "" is the one without a name. terrace_kv_namespace()
 *           makes one of a model and what its blocks depend on.
 * Cache     TERRACE_NOT_FOUND and TERRACE_CAPACITY_EXHAUSTED are everyday answers: compute the block, go on without.
 * Errors    Each call has those of the C++ call of its name. TERRACE_LEASE_EXPIRED is permanent.
 */
#ifndef TERRACE_KV_C_H
#define TERRACE_KV_C_H

#include "terrace/terrace_c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct terrace_kv terrace_kv;             /* a space, as this holder has it */
typedef struct terrace_kv_view terrace_kv_view;   /* a block that is read in place */
typedef struct terrace_kv_write terrace_kv_write; /* room for a block that is being filled */

enum { TERRACE_KV_KEY_BYTES_MAX = 512, TERRACE_KV_NAMESPACE_BYTES_MAX = 255 };

/* ---- making spaces, and taking part in them ---- */

struct terrace_kv_format_options {
  size_t size;
  uint32_t parts;           /* processes that put blocks at once. 0: 8 */
  uint32_t seats;           /* processes that only read in place. 0: 24, or 64 less the parts */
  uint64_t block_bytes;     /* the size that most blocks have. 0: 64 KiB */
  uint64_t max_block_bytes; /* no block can be larger. 0: 16 MiB, or less in small memory */
  uint32_t pins;            /* blocks that one process reads in place at once. 0: 1024 */
  int checksums;            /* TERRACE_CHECKSUMS_... */
  int coherence;            /* TERRACE_SPACE_COHERENT: see set_coherence */
  int set_coherence;        /* as in struct terrace_space_options */
  int ownership;            /* TERRACE_OWNERS_... */
  int reserved;             /* 0 */
  uint64_t lease_epoch;
};

struct terrace_kv_attach_options {
  size_t size;
  terrace_ownership* ownership; /* NULL: this holder gets copies only, and puts nothing */
  int reads_only;               /* not 0: it never takes a part */
  /* not 0: no thread of the library does what other holders wait for; call terrace_kv_tend now and then */
  int tended_by_caller;
  uint64_t host; /* for people */
  /* A folder of a local disk to which evicted blocks go, and where those are looked for that are not in the space
   * (kv_spill.h). NULL: none. It is closed with the space. */
  const char* spill_folder;
  uint64_t spill_bytes; /* its budget, for all processes of the host together. 0: what the folder has */
  /* For copies of hot blocks in this process's own memory (kv_local.h). 0: none; else at least 1 MiB. */
  uint64_t local_bytes;
  /* Where the space has members in other leases (kv_members.h): attaches them. NULL: those in files alone are found.
   * It must be open as long as the space is. */
  struct terrace_session* session;
};

/* memory: 64-byte aligned, nobody has it attached. options: NULL for the defaults, here and below. */
terrace_code terrace_kv_format(void* memory, uint64_t bytes, const struct terrace_kv_format_options* options);
/* All of a file, for example of /dev/shm. The descriptor stays the caller's, here and below. */
terrace_code terrace_kv_format_fd(int fd, const struct terrace_kv_format_options* options);

/* The memory must stay mapped until the handle and all views and writes of it are freed. */
terrace_code terrace_kv_attach(void* memory, uint64_t bytes, const struct terrace_kv_attach_options* options,
                               terrace_kv** kv);
/* The same, and the space keeps the mapping. */
terrace_code terrace_kv_attach_mapping(terrace_mapping* mapping,
                                       const struct terrace_kv_attach_options* options, terrace_kv** kv);
/* Maps all of a file, which must be open for reading and writing. Without options.ownership parts are owned by
 * locks on the file (terrace_ownership_by_locks). */
terrace_code terrace_kv_attach_fd(int fd, const struct terrace_kv_attach_options* options, terrace_kv** kv);
/* The space in a lease, by its id or label, and in all other members of it. options.ownership and .session are not
 * used. */
terrace_code terrace_kv_attach_lease(struct terrace_session* session, const char* lease,
                                     const struct terrace_kv_attach_options* options, terrace_kv** kv);
/* The part of this holder, once it has put something; -1: none. */
int terrace_kv_part(const terrace_kv* kv);
/* TERRACE_OK while the space's memory is there. */
terrace_code terrace_kv_health(const terrace_kv* kv);
/* Does what other holders wait for: see tended_by_caller. */
void terrace_kv_tend(terrace_kv* kv);
/* Detaches. Part and seat are given back once the views and writes are freed as well. */
void terrace_kv_free(terrace_kv* kv);

/* Writes "tenant/model/tokenizer/layout/dtype" and a zero; NULL is the same as "". TERRACE_LIMIT_EXCEEDED: `bytes`
 * are too few; TERRACE_KV_NAMESPACE_BYTES_MAX + 1 are always enough. */
terrace_code terrace_kv_namespace(const char* tenant, const char* model, const char* tokenizer,
                                  const char* layout, const char* dtype, char* into, size_t bytes);

/* ---- finding and reading blocks ---- */

/* Does not grow: programs make arrays of it. So are the structs of terrace_kv_get_many and _put_many. */
struct terrace_kv_key {
  const void* data;
  size_t bytes;
};

/* found[i]: 1 if keys[i] is there, else 0. */
terrace_code terrace_kv_exists(terrace_kv* kv, const char* name_space, const struct terrace_kv_key* keys,
                               size_t count, unsigned char* found);
/* The number of first keys that are there without a gap: a prompt's cached prefix. */
terrace_code terrace_kv_prefix(terrace_kv* kv, const char* name_space, const struct terrace_kv_key* keys,
                               size_t count, uint64_t* there);
terrace_code terrace_kv_length(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                               uint64_t* bytes);

/* Copies the block, whose length `bytes` is; may be NULL. TERRACE_INVALID_ARGUMENT: into_bytes are too few. */
terrace_code terrace_kv_get(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                            void* into, uint64_t into_bytes, uint64_t* bytes);

struct terrace_kv_get_one {
  struct terrace_kv_key key;
  void* into;
  uint64_t into_bytes;
  uint64_t bytes;    /* result: the block's length; 0 unless code is TERRACE_OK */
  terrace_code code; /* result, as of terrace_kv_get */
  int reserved;      /* 0 */
};
/* TERRACE_OK: each one's `code` says how it went; terrace_error_text() has the text of the last one that failed,
 * which may be that it is not there. Else nothing was copied. */
terrace_code terrace_kv_get_many(terrace_kv* kv, const char* name_space, struct terrace_kv_get_one* gets,
                                 size_t count);

/* The block in place: it stays there, unchanged, until the view is freed. */
terrace_code terrace_kv_get_view(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                                 terrace_kv_view** view);
const void* terrace_kv_view_data(const terrace_kv_view* view); /* 64-byte aligned; SIGBUS when the lease ends */
uint64_t terrace_kv_view_bytes(const terrace_kv_view* view);
void terrace_kv_view_free(terrace_kv_view* view);

/* ---- putting blocks ---- */

struct terrace_kv_put_options {
  size_t size;
  const void* parent; /* the key of the block before it in the prompt, parent_bytes long. NULL: none */
  size_t parent_bytes;
  uint64_t ttl_s;   /* until it is gone by itself. 0: never */
  uint64_t wait_ns; /* for room that other holders give. 0: 50 ms */
  int never_wait;   /* not 0: not at all */
  int checksum;     /* TERRACE_CHECKSUMS_ON, _OFF; else as the space was formatted */
};

/* TERRACE_ALREADY_EXISTS: somebody has put it: as good as done. */
terrace_code terrace_kv_put(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                            const void* data, uint64_t bytes, const struct terrace_kv_put_options* options);

struct terrace_kv_put_one {
  struct terrace_kv_key key;
  const void* data;
  uint64_t bytes;
  const struct terrace_kv_put_options* options; /* may be NULL; several may have the same */
  terrace_code code;                            /* result, as of terrace_kv_put */
  int reserved;                                 /* 0 */
};
/* As terrace_kv_get_many. */
terrace_code terrace_kv_put_many(terrace_kv* kv, const char* name_space, struct terrace_kv_put_one* puts,
                                 size_t count);

/* Room for a block of `bytes`, to be filled in place. Nobody finds it before it is published. */
terrace_code terrace_kv_begin_put(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                                  uint64_t bytes, const struct terrace_kv_put_options* options,
                                  terrace_kv_write** write);
/* 64-byte aligned, content undefined; SIGBUS when the lease ends. NULL once it is published. */
void* terrace_kv_write_data(terrace_kv_write* write);
uint64_t terrace_kv_write_bytes(const terrace_kv_write* write);
/* Copies all of the block; TERRACE_LEASE_EXPIRED where stores of the program's own would raise SIGBUS. */
terrace_code terrace_kv_write_fill(terrace_kv_write* write, const void* data, uint64_t bytes);
/* Every holder finds the block from now on. Whatever the code, the write is over, and its memory is not to be
 * stored to. TERRACE_ALREADY_EXISTS: it was put meanwhile, as good as done. */
terrace_code terrace_kv_write_publish(terrace_kv_write* write);
/* Gives it up, unless it was published. */
void terrace_kv_write_free(terrace_kv_write* write);

/* ---- care ---- */

/* TERRACE_BUSY: it is read in place, or its owner has not done it within wait_ns. */
terrace_code terrace_kv_erase(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                              uint64_t wait_ns);
/* The blocks not used for longest, until `bytes` are gone. erased: the number of blocks, here and below; may be
 * NULL. */
terrace_code terrace_kv_evict(terrace_kv* kv, uint64_t bytes, uint64_t* erased);
/* All blocks of one namespace. TERRACE_BUSY: some are left. */
terrace_code terrace_kv_flush(terrace_kv* kv, const char* name_space, uint64_t wait_ns, uint64_t* erased);
terrace_code terrace_kv_flush_all(terrace_kv* kv, uint64_t wait_ns, uint64_t* erased);

/* ---- members: JoinedKvSpace of kv_members.h ---- */

struct terrace_kv_shrunk {
  size_t size;
  uint64_t moved, moved_bytes; /* blocks that other members have now */
  uint64_t left_behind;        /* for which there was no room */
  uint32_t holders;            /* that still have it */
  int reserved;                /* 0 */
};
/* Makes the lease (id or label) or the file (a path with a '/') a member. TERRACE_ALREADY_EXISTS: it has something else.
 * Not for what terrace_kv_attach() has made. */
terrace_code terrace_kv_grow(terrace_kv* kv, const char* where);
/* Makes it leave: its blocks move as far as there is room. Waits at most wait_ns for others to let go of it. shrunk:
 * may be NULL. */
terrace_code terrace_kv_shrink(terrace_kv* kv, const char* where, uint64_t wait_ns,
                               struct terrace_kv_shrunk* shrunk);

/* ---- an operator's policy: KvPolicy of kv_space.h ---- */

/* Of a namespace, and of all whose names begin with it and a "/". */
struct terrace_kv_budget {
  const char* namespaces;
  uint64_t bytes;
  uint64_t used_bytes; /* told; not looked at by terrace_kv_set_policy() */
};
struct terrace_kv_kept {
  const char* namespaces;
  const void* key;
  size_t key_bytes; /* 0: all blocks, of namespaces as above; else this one, of the namespace called so */
};
/* In the place of the policy there is. TERRACE_BUSY: all parts are owned, or an owner did not give up the older one yet. */
terrace_code terrace_kv_set_policy(terrace_kv* kv, const struct terrace_kv_budget* budgets, size_t budget_count,
                                   const struct terrace_kv_kept* kept, size_t kept_count);
/* Looks at all blocks. The arrays are valid until this thread's next call of it. */
terrace_code terrace_kv_get_policy(terrace_kv* kv, const struct terrace_kv_budget** budgets,
                                   size_t* budget_count, const struct terrace_kv_kept** kept,
                                   size_t* kept_count);

/* ---- information: KvBlockInfo, KvStat, KvCounters and KvVerified of kv_space.h ---- */

/* `size` of a struct behind a pointer is the size that the library has filled. */
struct terrace_kv_block_info {
  size_t size;
  const char* name_space;
  const void* key;
  size_t key_bytes;
  uint64_t bytes;
  uint64_t expires_unix_s; /* 0: never */
  uint64_t used_unix_s;    /* put, or last known use, to some seconds */
  uint32_t part;
  int has_parent, has_checksum;
  uint32_t member; /* by index in the members of struct terrace_kv_stat */
};

struct terrace_kv_part_info {
  size_t size;
  uint64_t host;
  uint64_t blocks, block_bytes;
  uint64_t chunk_bytes; /* of the data, that it has now */
  const char* state;    /* "unused", "owned", "left" or "dead" */
  uint32_t part;
  uint32_t member; /* by index in the members of struct terrace_kv_stat */
};

struct terrace_kv_member_info {
  size_t size;
  const char* where; /* a lease's id or label, or a path; "": not known */
  const char* state; /* "filling", "leaving" or "lost" */
  const char* loss;  /* why it is lost */
  uint64_t data_bytes, free_bytes;
  uint64_t blocks, block_bytes;
  int older_policy; /* its policy is not the space's newest: a holder with a part of it puts that there */
};

struct terrace_kv_stat {
  size_t size;
  uint64_t data_bytes;
  uint64_t free_bytes; /* in chunks of no part */
  uint64_t blocks, block_bytes, blocks_max, max_block_bytes;
  int coherence; /* TERRACE_SPACE_... */
  int checksums;
  const struct terrace_kv_part_info* const* parts;
  size_t part_count;
  uint64_t kept_bytes; /* of blocks that the policy keeps */
  /* Copies in this process, and what they may have. */
  uint64_t local_blocks, local_bytes, local_max_bytes;
  const struct terrace_kv_member_info* const* members;
  size_t member_count; /* 1 at least */
};

/* Since this holder attached. */
struct terrace_kv_counters {
  size_t size;
  uint64_t hits, misses, hit_bytes;
  uint64_t puts, put_bytes, puts_refused;
  uint64_t evicted, evicted_bytes, expired, erased;
  uint64_t chunks_given, parts_adopted;
  uint64_t spilled, spill_hits, spill_dropped;
  uint64_t local_hits, local_hit_bytes; /* of the hits, from copies in this process */
  uint64_t local_copied, local_evicted, local_stale;
  uint64_t members_joined, members_lost; /* beside the first one */
};

struct terrace_kv_verified {
  size_t size;
  uint64_t blocks, bytes; /* that were compared */
  uint64_t without_checksum;
  uint64_t changed;                                 /* gone before they were read */
  const struct terrace_kv_block_info* const* wrong; /* bytes that do not have their checksum */
  size_t wrong_count;
};

/* Calls `each` for every block of every namespace, in no order, until it returns another value than 0. `info` is
 * valid during the call. */
terrace_code terrace_kv_list(terrace_kv* kv,
                             int (*each)(void* context, const struct terrace_kv_block_info* info),
                             void* context);
/* stat->parts and ->members are valid until this thread's next call of it. */
terrace_code terrace_kv_get_stat(terrace_kv* kv, struct terrace_kv_stat* stat);
terrace_code terrace_kv_get_counters(const terrace_kv* kv, struct terrace_kv_counters* counters);
/* Compares every block with its checksum. TERRACE_OK also where some are wrong: `verified` says so; its pointers
 * are valid until this thread's next call of it. */
terrace_code terrace_kv_verify(terrace_kv* kv, struct terrace_kv_verified* verified);

#ifdef __cplusplus
}
#endif

#endif
