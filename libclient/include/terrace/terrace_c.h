// SPDX-License-Identifier: Apache-2.0
/* The C interface of libterrace: sessions, leases, tensors that move between tiers, tensors that several
 * processes share. Pure C11; for programs in C and for languages that call C.
 *
 *     struct terrace_session_options options = {.size = sizeof options};
 *     terrace_session* session;
 *     if (terrace_session_connect(&options, &session) != TERRACE_OK) return fail(terrace_error_text());
 *
 * Status    Every call that can fail returns a terrace_code and leaves its results untouched unless it is
 *           TERRACE_OK. docs/c_api.md says what to do at each code; the C++ call of the same name lists its
 *           errors (tensor_pool.h, tensor_space.h, session.h). TERRACE_INVALID_ARGUMENT: a null pointer for a
 *           value, a number outside its enumeration, or an option struct of no known size.
 * Options   A struct with `size` = sizeof itself. Zero in all other members is the default. New members come at
 *           the end: an older program's struct is shorter. TERRACE_VERSION_MISMATCH: a newer program's struct
 *           sets a member that this library does not know.
 * Results   The same: statistics are filled as far as `size` says.
 * Handles   Free each once with its own *_free, in any order, from any thread. A handle keeps its dependencies
 *           alive (a tensor its memory, a lease its session). Freeing NULL does nothing.
 * Names     are UTF-8.
 * Threads   All calls from any thread; do not free a handle while another thread uses it.
 */
#ifndef TERRACE_TERRACE_C_H
#define TERRACE_TERRACE_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

typedef int terrace_code;

enum {
  TERRACE_OK = 0,
  TERRACE_INVALID_ARGUMENT = 1,
  TERRACE_NOT_FOUND = 2,
  TERRACE_ALREADY_EXISTS = 3,
  TERRACE_PERMISSION_DENIED = 4,
  TERRACE_CAPACITY_EXHAUSTED = 5,
  TERRACE_LIMIT_EXCEEDED = 6,
  TERRACE_LEASE_EXPIRED = 7,
  TERRACE_LEASE_REVOKED = 8,
  TERRACE_BUSY = 9,
  TERRACE_UNAVAILABLE = 10,
  TERRACE_IO_ERROR = 11,
  TERRACE_CORRUPT = 12,
  TERRACE_UNSUPPORTED = 13,
  TERRACE_VERSION_MISMATCH = 14,
  TERRACE_OUT_OF_MEMORY = 15,
  TERRACE_CANCELLED = 16,
  TERRACE_INTERNAL = 17
};

/* "capacity_exhausted"; "internal" for numbers that are none. */
const char* terrace_code_name(terrace_code code);
/* The whole text of this thread's last call that failed: which tensor, which tier, how many bytes short, where.
 * Empty when none did. Valid until this thread's next failing call. */
const char* terrace_error_text(void);
/* The errno of that failure; 0 where the kernel had no part in it. */
int terrace_error_errno(void);
/* "0.2.0": of the library that the program runs with. */
const char* terrace_version(void);

/* ---- sessions and leases (session.h) ---- */

typedef struct terrace_session terrace_session;
typedef struct terrace_lease terrace_lease;

struct terrace_session_options {
  size_t size;
  const char* socket_path; /* NULL or empty: $TERRACE_SOCKET, else the usual place */
  const char* tenant;
  const char* host;
  const char* client_name;
  uint64_t connect_timeout_ns; /* 0: 5 s */
  uint64_t call_timeout_ns;    /* 0: 30 s */
};

enum { TERRACE_LEASE_EXCLUSIVE = 0, TERRACE_LEASE_SHARED_READ_ONLY = 1, TERRACE_LEASE_SHARED_COHERENT = 2 };
enum { TERRACE_ACCESS_READ_ONLY = 0, TERRACE_ACCESS_READ_WRITE = 1 };
enum { TERRACE_ON_FENCE_KEEP = 0, TERRACE_ON_FENCE_KILL = 1 };
enum { TERRACE_LEASE_LIVE = 0, TERRACE_LEASE_REVOKING = 1, TERRACE_LEASE_LOST = 2 };

struct terrace_lease_request {
  size_t size;
  const char* pool; /* NULL: the only one there is */
  uint64_t bytes;
  int mode;
  int persistent;
  uint64_t ttl_ns;   /* 0: the manager's default */
  const char* label; /* NULL: none */
  int movable;
  uint64_t wait_ns; /* in the queue of a full pool */
  int detached;     /* it outlives the processes that hold it, until its expiry; see LeaseRequest */
  int reserved;
  int on_fence; /* TERRACE_ON_FENCE_KILL: this process agrees to be ended before the memory is taken; see LeaseRequest */
};

/* options: NULL for the defaults. */
terrace_code terrace_session_connect(const struct terrace_session_options* options, terrace_session** session);
int terrace_session_connected(const terrace_session* session);
/* The tenant that the manager knows it as. Valid as long as the handle. */
const char* terrace_session_tenant(const terrace_session* session);
/* The session ends once its leases, and all handles made from them, are freed, too. Waits for a handler of
 * terrace_session_on_notice that runs, except in that handler. */
void terrace_session_free(terrace_session* session);

/* A change of a lease; see LeaseNotice. cause: "expired", "device_lost", ...; empty: not lost, or not
 * known. */
struct terrace_notice {
  size_t size; /* set by the caller, for terrace_session_next_notice */
  uint64_t lease;
  int state; /* TERRACE_LEASE_... */
  int move_requested;
  uint64_t grace_ns; /* left before the fence, for TERRACE_LEASE_REVOKING */
  char cause[32];
  char reason[256];
};
typedef void (*terrace_notice_handler)(const struct terrace_notice* notice, void* context);

/* Calls `handler` with each notice, one at a time, on a thread of the session that does not renew leases: it
 * may take long, and may call all of this interface. NULL ends that. When this returns, no earlier handler
 * runs any more; called by the handler itself it returns at once. */
terrace_code terrace_session_on_notice(terrace_session* session, terrace_notice_handler handler, void* context);
/* The oldest notice that waits; TERRACE_NOT_FOUND: none does, or a handler takes them. Never blocks. */
terrace_code terrace_session_next_notice(terrace_session* session, struct terrace_notice* notice);
/* For poll(): readable while terrace_session_next_notice has one. The session's; neither read nor close it. -1
 * for NULL. */
int terrace_session_notice_fd(const terrace_session* session);

terrace_code terrace_lease_grant(terrace_session* session, const struct terrace_lease_request* request,
                                 terrace_lease** lease);
/* By id, or by label when the id is 0. */
terrace_code terrace_lease_attach(terrace_session* session, uint64_t id, const char* label, int read_only,
                                  terrace_lease** lease);
/* The same, TERRACE_ON_FENCE_KILL: this process agrees to be ended before the memory is taken, where that is the lease's kind. */
terrace_code terrace_lease_attach_on_fence(terrace_session* session, uint64_t id, const char* label,
                                           int read_only, int on_fence, terrace_lease** lease);
uint64_t terrace_lease_id(const terrace_lease* lease);
uint64_t terrace_lease_epoch(const terrace_lease* lease);
uint64_t terrace_lease_bytes(const terrace_lease* lease);
int terrace_lease_state(const terrace_lease* lease);
/* TERRACE_ACCESS_...; -1 for NULL. */
int terrace_lease_access(const terrace_lease* lease);
int terrace_lease_on_fence(const terrace_lease* lease); /* TERRACE_ON_FENCE_...; -1 for NULL */
/* Of the memory; the lease's. -1 for NULL. */
int terrace_lease_fd(const terrace_lease* lease);
terrace_code terrace_lease_renew(terrace_lease* lease, uint64_t ttl_ns);
terrace_code terrace_lease_resize(terrace_lease* lease, uint64_t bytes);
/* Gives the memory back; the handle is still to be freed. */
terrace_code terrace_lease_release(terrace_lease* lease);
/* Without terrace_lease_release the lease lives until its expiry or, unless it was granted `detached`, until the
 * process ends. */
void terrace_lease_free(terrace_lease* lease);

/* ---- a lease's memory in this process (mapping.h) ---- */

typedef struct terrace_mapping terrace_mapping;

terrace_code terrace_mapping_map(terrace_lease* lease, terrace_mapping** mapping);
/* NULL where the lease may only be read; then const_data alone. */
void* terrace_mapping_data(terrace_mapping* mapping);
const void* terrace_mapping_const_data(const terrace_mapping* mapping);
uint64_t terrace_mapping_bytes(const terrace_mapping* mapping);
void terrace_mapping_free(terrace_mapping* mapping);

/* ---- information about leases and pools: LeaseInfo and PoolInfo of session.h ---- */

typedef struct terrace_lease_infos terrace_lease_infos; /* as of the call */
typedef struct terrace_pool_infos terrace_pool_infos;

/* The operator's statement about the caches of all hosts that map a pool's memory. */
enum { TERRACE_COHERENCE_UNKNOWN = 0, TERRACE_COHERENCE_COHERENT = 1, TERRACE_COHERENCE_NONCOHERENT = 2 };
enum { TERRACE_PLACEMENT_LINEAR = 0, TERRACE_PLACEMENT_STRIPED = 1, TERRACE_PLACEMENT_SPREAD = 2 };

/* Pointers in these structs are valid until their list is freed. `size` of a struct behind a pointer is the
 * size that the library has filled. Texts are never NULL. */
struct terrace_tier_figures {
  size_t size;
  uint32_t latency_ns, distance;
  uint64_t bandwidth_bytes_per_s;
  int node; /* -1: none is said */
  int persistent;
  const char *source, *isolation;
};

struct terrace_extent_info {
  size_t size;
  const char* device;
  uint64_t offset_bytes, length_bytes;
};

struct terrace_part_owner {
  size_t size;
  uint32_t part, pid;
  uint64_t epoch;
  int owned, ended;
  const char* holder;
  const char* host; /* of its process; empty: the manager's own, or nobody's */
};

struct terrace_lease_info {
  size_t size;
  uint64_t id, epoch;
  const char *pool, *tenant, *host, *label, *object, *reason, *phase, *tier, *isolation;
  uint64_t bytes, ttl_ns, expires_in_ns, granule_bytes, object_bytes;
  int huge_pages;
  int mode; /* TERRACE_LEASE_... */
  const struct terrace_extent_info* const* extents;
  size_t extent_count;
  uint64_t usage_ddr_bytes, usage_cxl_bytes, usage_live_bytes, usage_age_ns;
  const char* usage_holder;
  const char* cause; /* "expired", "device_lost", ...; empty: it was not taken */
  int movable;
  uint32_t holders;
  const struct terrace_tier_figures* figures;
  const struct terrace_part_owner* const* owners; /* not in terrace_session_leases */
  size_t owner_count;
  int coherence;                    /* TERRACE_COHERENCE_... */
  int on_fence;                     /* TERRACE_ON_FENCE_... */
  const char* offered_to;           /* the tenant that may accept it; empty: none */
  const char* const* further_hosts; /* that have it attached too */
  size_t further_host_count;
};

struct terrace_free_runs {
  size_t size;
  uint64_t run_bytes_min, runs, bytes;
};

struct terrace_pool_info {
  size_t size;
  const char* name;
  const char* const* devices;
  size_t device_count;
  uint64_t capacity_bytes, free_bytes, leased_bytes, scrubbing_bytes, quarantined_bytes;
  uint64_t largest_free_bytes, granule_bytes, stripe_bytes, reserved_bytes, grantable_bytes, waiting_bytes;
  uint32_t leases, waiting;
  int placement; /* TERRACE_PLACEMENT_... */
  int coherence; /* TERRACE_COHERENCE_... */
  const struct terrace_free_runs* const* free_runs;
  size_t free_run_count;
  const struct terrace_tier_figures* figures;
};

/* A list of one: this lease, fresh from the manager. */
terrace_code terrace_lease_get_info(terrace_lease* lease, terrace_lease_infos** infos);
terrace_code terrace_session_leases(terrace_session* session, terrace_lease_infos** infos);
size_t terrace_lease_infos_count(const terrace_lease_infos* infos);
terrace_code terrace_lease_infos_get(const terrace_lease_infos* infos, size_t index,
                                     struct terrace_lease_info* info);
void terrace_lease_infos_free(terrace_lease_infos* infos);

terrace_code terrace_session_pools(terrace_session* session, terrace_pool_infos** infos);
size_t terrace_pool_infos_count(const terrace_pool_infos* infos);
terrace_code terrace_pool_infos_get(const terrace_pool_infos* infos, size_t index,
                                    struct terrace_pool_info* info);
void terrace_pool_infos_free(terrace_pool_infos* infos);

/* ---- descriptions of tensors (tensor.h) ---- */

enum { TERRACE_RANK_MAX = 8 };

enum {
  TERRACE_DTYPE_BOOL = 1,
  TERRACE_DTYPE_F4 = 2,
  TERRACE_DTYPE_F6_E2M3 = 3,
  TERRACE_DTYPE_F6_E3M2 = 4,
  TERRACE_DTYPE_U8 = 5,
  TERRACE_DTYPE_I8 = 6,
  TERRACE_DTYPE_F8_E5M2 = 7,
  TERRACE_DTYPE_F8_E4M3 = 8,
  TERRACE_DTYPE_F8_E8M0 = 9,
  TERRACE_DTYPE_I16 = 10,
  TERRACE_DTYPE_U16 = 11,
  TERRACE_DTYPE_F16 = 12,
  TERRACE_DTYPE_BF16 = 13,
  TERRACE_DTYPE_I32 = 14,
  TERRACE_DTYPE_U32 = 15,
  TERRACE_DTYPE_F32 = 16,
  TERRACE_DTYPE_C64 = 17,
  TERRACE_DTYPE_F64 = 18,
  TERRACE_DTYPE_I64 = 19,
  TERRACE_DTYPE_U64 = 20,
  TERRACE_DTYPE_F8_E4M3FNUZ = 21,
  TERRACE_DTYPE_F8_E5M2FNUZ = 22
};
enum {
  TERRACE_HINT_NONE = 0,
  TERRACE_HINT_WEIGHTS = 1,
  TERRACE_HINT_ACTIVATIONS = 2,
  TERRACE_HINT_GRADIENTS = 3,
  TERRACE_HINT_OPTIMIZER_STATE = 4,
  TERRACE_HINT_KV_CACHE = 5
};
enum { TERRACE_FLAG_READ_MOSTLY = 1, TERRACE_FLAG_STREAMING = 2, TERRACE_FLAG_PINNED = 4 };
/* Only in flags that are returned for a shared tensor; to ask for it see terrace_create_options. */
enum { TERRACE_FLAG_PEERS_MAY_REMOVE = 8 };
enum { TERRACE_TIER_DDR = 0, TERRACE_TIER_CXL = 1, TERRACE_TIER_HBM = 2 };

struct terrace_tensor_spec {
  size_t size;
  const char* name; /* NULL or empty: none */
  int dtype;
  uint32_t rank;
  const uint64_t* dimensions; /* `rank` of them */
  int hint;
  uint32_t flags;
};

/* ---- tensors that move between DDR and CXL (tensor_pool.h) ---- */

typedef struct terrace_pool terrace_pool;
typedef struct terrace_tensor terrace_tensor;
typedef struct terrace_guard terrace_guard;
typedef struct terrace_move terrace_move;
typedef struct terrace_device terrace_device;

enum { TERRACE_WAIT_BY_COST = 0, TERRACE_WAIT_ALWAYS = 1, TERRACE_WAIT_NEVER = 2 };

#define TERRACE_NO_BOUND UINT64_MAX

struct terrace_pool_options {
  size_t size;
  terrace_session* session; /* may be NULL where this process may open /dev/userfaultfd by itself */
  const char* name;         /* NULL: "tensors" */
  uint64_t ddr_bytes;
  uint64_t copy_bytes_per_s_max; /* 0: 2 GiB; TERRACE_NO_BOUND: none */
  uint64_t copy_batch_bytes;     /* 0: 8 MiB */
  const char* policy;            /* NULL: the default */
  int guard_wait;
  int ignore_steps; /* not 0: no order is learned */
  uint32_t ddr_latency_ns, cxl_latency_ns;
  uint64_t ddr_bytes_per_s, cxl_bytes_per_s;
  terrace_device* device; /* whose memory is tier hbm; the pool keeps it. NULL: the pool has none */
  uint64_t hbm_bytes;     /* of it, for this pool; 0: nine tenths */
};

enum { TERRACE_STEPS_OFF = 0, TERRACE_STEPS_OBSERVING = 1, TERRACE_STEPS_FOLLOWING = 2 };

struct terrace_pool_statistics {
  size_t size;
  uint64_t tensors, tensor_bytes, capacity_bytes, free_bytes;
  uint64_t ddr_bytes_max, ddr_bytes, cxl_bytes, pinned_bytes;
  uint64_t steps, orders_learned, orders_forgotten, deviations;
  uint64_t planned_bytes_per_step, copied_to_ddr_bytes, copied_to_cxl_bytes, copy_ns;
  uint64_t guards, guard_waits, guard_wait_ns, guard_waits_given_up;
  uint32_t uses_per_step;
  int step_state;
  char reason[256]; /* why nothing moves, cut to fit; empty: it does */
};

struct terrace_tensor_statistics {
  size_t size;
  uint64_t reads, writes, guard_waits, guard_wait_ns;
  float uses_per_step;
  uint32_t pins;
  uint64_t device_reads, device_writes;
};

struct terrace_guard_options {
  size_t size;
  int hold;          /* not 0: the bytes do not move while the guard is open */
  int override_wait; /* not 0: `wait` instead of the pool's guard_wait */
  int wait;
  int reserved; /* 0 */
};

struct terrace_advice {
  size_t size;
  int set_hint, hint; /* not 0: `hint` holds from now on; and so on */
  int set_flags;
  uint32_t flags; /* TERRACE_FLAG_READ_MOSTLY, TERRACE_FLAG_STREAMING */
  int set_passes;
  float passes;
};

/* leases: `lease_count` handles, may be 0. The pool keeps the leases alive; the handles stay the caller's.
 */
terrace_code terrace_pool_make(const struct terrace_pool_options* options, terrace_lease* const* leases,
                               size_t lease_count, terrace_pool** pool);
terrace_code terrace_pool_create(terrace_pool* pool, const struct terrace_tensor_spec* spec,
                                 terrace_tensor** tensor);
terrace_code terrace_pool_find(terrace_pool* pool, const char* name, terrace_tensor** tensor);
terrace_code terrace_pool_step(terrace_pool* pool);
terrace_code terrace_pool_get_statistics(const terrace_pool* pool, struct terrace_pool_statistics* statistics);
/* 0 or TERRACE_NO_BOUND: no bound. */
terrace_code terrace_pool_set_copy_budget(terrace_pool* pool, uint64_t bytes_per_s);
/* Its tensors stay usable where they are; nothing moves any more. */
void terrace_pool_free(terrace_pool* pool);

/* Constant over the handle's life. NULL handle: "", 0, NULL. */
const char* terrace_tensor_name(const terrace_tensor* tensor);
int terrace_tensor_dtype(const terrace_tensor* tensor);
uint32_t terrace_tensor_rank(const terrace_tensor* tensor);
const uint64_t* terrace_tensor_shape(const terrace_tensor* tensor);
const int64_t* terrace_tensor_strides(const terrace_tensor* tensor); /* in elements */
int terrace_tensor_is_view(const terrace_tensor* tensor);
void* terrace_tensor_data(const terrace_tensor* tensor);     /* of the first element */
void* terrace_tensor_lowest(const terrace_tensor* tensor);   /* where its bytes begin */
uint64_t terrace_tensor_bytes(const terrace_tensor* tensor); /* from there to the last element's end */
/* As they are now. */
int terrace_tensor_hint(const terrace_tensor* tensor);
uint32_t terrace_tensor_flags(const terrace_tensor* tensor);
void terrace_tensor_free(terrace_tensor* tensor);

terrace_code terrace_tensor_slice(terrace_tensor* tensor, uint32_t dimension, uint64_t start, uint64_t length,
                                  uint64_t step, terrace_tensor** view);
terrace_code terrace_tensor_as_strided(terrace_tensor* tensor, uint32_t rank, const uint64_t* dimensions,
                                       const int64_t* strides, uint64_t offset, terrace_tensor** view);

/* options: NULL for the defaults. */
terrace_code terrace_tensor_read(terrace_tensor* tensor, const struct terrace_guard_options* options,
                                 terrace_guard** guard);
terrace_code terrace_tensor_write(terrace_tensor* tensor, const struct terrace_guard_options* options,
                                  terrace_guard** guard);
const void* terrace_guard_data(const terrace_guard* guard);
/* NULL for a guard of terrace_tensor_read. */
void* terrace_guard_writable(terrace_guard* guard);
uint64_t terrace_guard_bytes(const terrace_guard* guard);
/* Closes it. */
void terrace_guard_free(terrace_guard* guard);

/* move: may be NULL, then the move goes on without a handle. */
terrace_code terrace_tensor_pin(terrace_tensor* tensor, int tier, terrace_move** move);
terrace_code terrace_tensor_unpin(terrace_tensor* tensor);
terrace_code terrace_tensor_prefetch(terrace_tensor* tensor, terrace_move** move);
terrace_code terrace_tensor_prefetch_to(terrace_tensor* tensor, int tier, terrace_move** move);
terrace_code terrace_tensor_move_to(terrace_tensor* tensor, int tier, terrace_move** move);
terrace_code terrace_tensor_advise(terrace_tensor* tensor, const struct terrace_advice* advice);
terrace_code terrace_tensor_residency(const terrace_tensor* tensor, uint64_t* ddr_bytes, uint64_t* cxl_bytes);
terrace_code terrace_tensor_get_statistics(const terrace_tensor* tensor,
                                           struct terrace_tensor_statistics* statistics);

int terrace_move_done(const terrace_move* move);
terrace_code terrace_move_wait(terrace_move* move, uint64_t timeout_ns);
uint64_t terrace_move_bytes_there(const terrace_move* move);
/* The move goes on. */
void terrace_move_free(terrace_move* move);

/* ---- tier hbm of a pool (device_memory.h, tensor_device.h) ---- */

typedef struct terrace_device_guard terrace_device_guard;

struct terrace_cuda_options {
  size_t size;
  int ordinal;
  int reserved;           /* 0 */
  uint64_t staging_bytes; /* 0: 4 MiB */
};

/* Memory of this process behaves as a device's; 0: no limit. */
struct terrace_emulated_options {
  size_t size;
  uint64_t capacity_bytes; /* 0: 1 GiB */
  uint64_t upload_bytes_per_s, download_bytes_per_s, latency_ns;
};

enum { TERRACE_DEVICE_EMULATED = 0, TERRACE_DEVICE_CUDA = 1 };

/* As DeviceInfo. The texts are valid as long as the handle. */
struct terrace_device_info {
  size_t size;
  uint64_t capacity_bytes;
  const char* name;        /* "NVIDIA H200", "emulated device" */
  const char* description; /* for people; that of an emulated device says that it is one */
  int kind;                /* TERRACE_DEVICE_... */
  int32_t ordinal;         /* the driver's number of the device; 0 for an emulated one */
  int32_t driver_version;  /* 12040 for CUDA 12.4; 0 for an emulated one */
  int reserved;            /* 0 */
};

/* As DeviceUse. */
struct terrace_device_use {
  size_t size;
  uint64_t capacity_bytes;
  uint64_t free_bytes;      /* of the whole device: others use it too */
  uint64_t allocated_bytes; /* by this handle's device, for its pools */
};

struct terrace_device_guard_options {
  size_t size;
  int overwrite;       /* of terrace_tensor_device_write: the device writes all, so nothing is copied up */
  int reserved;        /* 0 */
  uint64_t timeout_ns; /* 0: as long as it takes */
};

/* As HbmStatistics. */
struct terrace_hbm_statistics {
  size_t size;
  uint64_t capacity_bytes, budget_bytes, used_bytes, pinned_bytes, in_use_bytes;
  uint64_t dirty_bytes, stale_bytes, under_way_bytes, replicas;
  uint64_t uploads, uploaded_bytes, uploads_ahead, write_backs, written_back_bytes;
  uint64_t evictions, evicted_bytes, failed_copies, refused;
  uint64_t guards, guard_waits, guard_wait_ns, host_waits, host_wait_ns;
  uint64_t planned_bytes_per_step;
  uint32_t uses_per_step;
  int following;
};

terrace_code terrace_device_open_cuda(const struct terrace_cuda_options* options, terrace_device** device);
terrace_code terrace_device_make_emulated(const struct terrace_emulated_options* options,
                                          terrace_device** device);
/* For people. Valid as long as the handle. */
const char* terrace_device_description(const terrace_device* device);
int terrace_device_is_emulated(const terrace_device* device);
terrace_code terrace_device_get_info(const terrace_device* device, struct terrace_device_info* info);
/* Asks the driver: fails with TERRACE_IO_ERROR or TERRACE_UNAVAILABLE where the device is lost. */
terrace_code terrace_device_get_use(const terrace_device* device, struct terrace_device_use* use);
void terrace_device_free(terrace_device* device);

/* options: NULL for the defaults. Waits until the tensor is in the device's memory. It stays there at its
 * address until the guard is freed and the DLPack tensors made of it are gone. */
terrace_code terrace_tensor_device_read(terrace_tensor* tensor,
                                        const struct terrace_device_guard_options* options,
                                        terrace_device_guard** guard);
terrace_code terrace_tensor_device_write(terrace_tensor* tensor,
                                         const struct terrace_device_guard_options* options,
                                         terrace_device_guard** guard);
/* The device's, of the first element. */
uint64_t terrace_device_guard_address(const terrace_device_guard* guard);
uint64_t terrace_device_guard_bytes(const terrace_device_guard* guard);
/* Closes it. */
void terrace_device_guard_free(terrace_device_guard* guard);
/* Waits until the host's bytes are as new as the device's. */
terrace_code terrace_tensor_write_back(terrace_tensor* tensor);
/* The host's bytes count from now on, also where the device's are newer. */
terrace_code terrace_tensor_discard_hbm(terrace_tensor* tensor);
terrace_code terrace_tensor_hbm_residency(const terrace_tensor* tensor, uint64_t* hbm_bytes,
                                          uint64_t* dirty_bytes);
terrace_code terrace_pool_get_hbm_statistics(const terrace_pool* pool,
                                             struct terrace_hbm_statistics* statistics);

/* ---- tensors that several processes share (tensor_space.h) ---- */

typedef struct terrace_ownership terrace_ownership;
typedef struct terrace_space terrace_space;
typedef struct terrace_shared terrace_shared; /* a SharedTensor */
typedef struct terrace_pin terrace_pin;
typedef struct terrace_write terrace_write;

enum { TERRACE_SPACE_COHERENT = 0, TERRACE_SPACE_NONCOHERENT = 1 };
enum { TERRACE_CHECKSUMS_BY_COHERENCE = 0, TERRACE_CHECKSUMS_ON = 1, TERRACE_CHECKSUMS_OFF = 2 };

/* The kind of source that gives holders the ownership of parts; a space has one. */
enum {
  TERRACE_OWNERS_AS_THE_FIRST = 0, /* of the first owner */
  TERRACE_OWNERS_BY_MANAGER = 1,
  TERRACE_OWNERS_BY_HOSTS = 2,
  TERRACE_OWNERS_BY_LOCKS = 3,
  TERRACE_OWNERS_BY_PROGRAM = 4
};

struct terrace_space_options {
  size_t size;
  uint32_t parts;            /* 0: 8 */
  uint32_t records_per_part; /* 0: 4096 */
  uint32_t pins_per_part;    /* 0: 256 */
  int coherence;             /* TERRACE_SPACE_COHERENT: see set_coherence */
  int checksums;
  uint64_t lease_epoch;
  /* not 0: uses `coherence`; coherent is refused if the lease's pool is noncoherent. 0: TERRACE_SPACE_COHERENT
   * is replaced by the operator's statement about the lease's pool, noncoherent if there is none. For memory of
   * no lease of this process it stays coherent, but is noncoherent for a DAX device. */
  int set_coherence;
  int ownership;     /* TERRACE_OWNERS_... */
  uint32_t seats;    /* for holders that read in place and own no part. 0: 8, or 64 less the parts */
  uint32_t reserved; /* 0 */
};

/* The time at which a holder becomes the owner of a part. */
enum {
  /* In its first create; or in its first write, publish or remove, which claims the tensor's part. So a process
   * that only opens, reads and pins takes no part from a restarted writer. */
  TERRACE_CLAIM_WHEN_NEEDED = 0,
  TERRACE_CLAIM_AT_ONCE = 1
};

struct terrace_attach_options {
  size_t size;
  terrace_ownership* ownership; /* NULL: this holder only reads, by copy */
  int without_part;             /* not 0: only reads, in place from a seat: all parts stay for writers */
  int choose_part;              /* not 0: `part`, claimed at once; else the first that can be had */
  uint32_t part;
  uint64_t host;
  int claim;    /* TERRACE_CLAIM_... */
  int reserved; /* 0 */
};

struct terrace_create_options {
  size_t size;
  int single_buffered;  /* not 0: half the bytes, and nothing to read while it is written */
  uint64_t wait_ns;     /* 0: a second; while others create the same name */
  int peers_may_remove; /* not 0: other holders' terrace_shared_remove asks the owner to remove it */
};

/* For the memory of a lease: works between users and languages, and with leases that move. Keeps the lease
 * alive. */
terrace_code terrace_ownership_by_manager(terrace_lease* lease, terrace_ownership** ownership);
/* For memory without a lease: a file that this process may open again. */
terrace_code terrace_ownership_by_locks(int fd, uint64_t space_offset, terrace_ownership** ownership);
void terrace_ownership_free(terrace_ownership* ownership);

/* memory: 64-byte aligned, nobody has it attached. options: NULL for the defaults, here and below. */
terrace_code terrace_space_format(void* memory, uint64_t bytes, const struct terrace_space_options* options);
/* The memory must stay mapped until the space and all handles made from it are freed. */
terrace_code terrace_space_attach(void* memory, uint64_t bytes, const struct terrace_attach_options* options,
                                  terrace_space** space);
/* The same, and the space keeps the mapping. */
terrace_code terrace_space_attach_mapping(terrace_mapping* mapping,
                                          const struct terrace_attach_options* options, terrace_space** space);
/* -1: this holder has no part, or none yet. */
int terrace_space_part(const terrace_space* space);
/* The seat of a holder that pinned when it had no part; else -1. */
int terrace_space_seat(const terrace_space* space);
/* Bytes for this holder's tensors now: free ones beside them, and those of no holder, which all share. */
uint64_t terrace_space_free_bytes(const terrace_space* space);
/* The biggest hole among them: no tensor can be larger. */
uint64_t terrace_space_largest_free_bytes(const terrace_space* space);
uint32_t terrace_space_parts(const terrace_space* space);
/* TERRACE_SPACE_...; -1 for NULL. */
int terrace_space_coherence(const terrace_space* space);
/* TERRACE_OK while the space's memory is there; else TERRACE_LEASE_EXPIRED, which is permanent. */
terrace_code terrace_space_health(const terrace_space* space);
/* Removes the tensors of other holders' requests, for an owner that makes no other call. Returns the number. */
uint64_t terrace_space_tend(terrace_space* space);
/* The part is given back once the pins, writes and shared tensors are freed as well. */
void terrace_space_free(terrace_space* space);

terrace_code terrace_space_create(terrace_space* space, const struct terrace_tensor_spec* spec,
                                  const struct terrace_create_options* options, terrace_shared** shared);
terrace_code terrace_space_open(terrace_space* space, const char* name, terrace_shared** shared);
/* Calls `each` for every tensor, in no order, until it returns another value than 0. `shared` belongs to the
 * list and is freed after the call. */
terrace_code terrace_space_list(terrace_space* space, int (*each)(void* context, terrace_shared* shared),
                                void* context);

const char* terrace_shared_name(const terrace_shared* shared);
int terrace_shared_dtype(const terrace_shared* shared);
uint32_t terrace_shared_rank(const terrace_shared* shared);
const uint64_t* terrace_shared_shape(const terrace_shared* shared);
uint64_t terrace_shared_bytes(const terrace_shared* shared);
uint32_t terrace_shared_part(const terrace_shared* shared);
int terrace_shared_double_buffered(const terrace_shared* shared);
const int64_t* terrace_shared_strides(const terrace_shared* shared); /* in elements */
int terrace_shared_hint(const terrace_shared* shared);
uint32_t terrace_shared_flags(const terrace_shared* shared); /* TERRACE_FLAG_... */

/* The identity of a tensor: a later tensor with the same name or in the same place has another one. */
struct terrace_tensor_identity {
  size_t size;
  const void* memory; /* of the space, as mapped in this process */
  uint32_t part, record;
  uint64_t incarnation;
};
terrace_code terrace_shared_identity(const terrace_shared* shared, struct terrace_tensor_identity* identity);
void terrace_shared_free(terrace_shared* shared);

/* The owner removes another holder's tensor created with peers_may_remove: see TensorSpace::remove. */
terrace_code terrace_shared_remove(terrace_shared* shared, uint64_t wait_ns);
terrace_code terrace_shared_version(terrace_shared* shared, uint64_t* version);
/* Not 0: a copy of `version` is the newest. */
int terrace_shared_is_current(terrace_shared* shared, uint64_t version);
/* Copies the newest version unless the caller has it (`known`; 0: nothing). */
terrace_code terrace_shared_read(terrace_shared* shared, void* into, uint64_t bytes, uint64_t known,
                                 uint64_t wait_ns, uint64_t* version);
terrace_code terrace_shared_publish(terrace_shared* shared, const void* data, uint64_t bytes, uint64_t wait_ns,
                                    uint64_t* version);
terrace_code terrace_shared_wait_for_version(terrace_shared* shared, uint64_t at_least, uint64_t wait_ns,
                                             uint64_t* version);

/* The newest version in place: its bytes stay unchanged until the pin is freed. */
terrace_code terrace_shared_pin(terrace_shared* shared, uint64_t wait_ns, terrace_pin** pin);
const void* terrace_pin_data(const terrace_pin* pin);
uint64_t terrace_pin_bytes(const terrace_pin* pin);
uint64_t terrace_pin_version(const terrace_pin* pin);
void terrace_pin_free(terrace_pin* pin);

/* A slot to fill in place and to publish. Freeing it without publishing cancels the write. */
terrace_code terrace_shared_write(terrace_shared* shared, uint64_t wait_ns, terrace_write** write);
/* NULL once it is published. */
void* terrace_write_data(terrace_write* write);
uint64_t terrace_write_bytes(const terrace_write* write);
terrace_code terrace_write_publish(terrace_write* write, uint64_t* version);
void terrace_write_free(terrace_write* write);

/* ---- checkpoints: the bytes of a pool's tensors at one moment, in a directory (checkpoint.h) ---- */

typedef struct terrace_checkpoints terrace_checkpoints; /* a directory of them */
typedef struct terrace_checkpoint terrace_checkpoint;   /* one that is being written */
typedef struct terrace_tensors terrace_tensors;         /* several tensors of a pool, in an order */

/* Called on the caller's thread; for terrace_checkpoint_begin on the writing thread. The program's stores wait
 * for that thread: its callbacks must not store to the tensors, nor wait for a thread that does. */
struct terrace_transfer {
  size_t size;
  void (*progress)(void* context, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
  int (*cancelled)(void* context); /* may be NULL; not 0: give up, with TERRACE_CANCELLED */
  void* context;
};

struct terrace_checkpoint_options {
  size_t size;
  const char* const* metadata; /* key, value, key, value, ... */
  size_t metadata_count;       /* of pairs */
  /* A bound on the pool's free memory for copies of bytes that are stored to before they are written. 0: half
   * of the free memory, or as much as is needed; TERRACE_NO_BOUND is the same. */
  uint64_t room_bytes_max;
  const struct terrace_transfer* transfer; /* may be NULL, here and below; copied */
};

struct terrace_checkpoint_progress {
  size_t size;
  uint64_t file_bytes, written_bytes;
  uint64_t pause_ns;
  uint64_t snapshot_bytes, copied_bytes, copied_at_once_bytes, room_bytes, waits_for_room;
  char reason[256]; /* why bytes were copied at once, cut to fit */
};

struct terrace_checkpoint_info {
  size_t size;
  uint64_t tensors, tensor_bytes, file_bytes;
  uint64_t created_unix_ns;
  char name[136];
  /* The safetensors file; empty for a damaged checkpoint. Valid during the call of `each`, and until this
   * thread's next terrace_checkpoints_find. */
  const char* file;
};

struct terrace_checkpoint_leftovers {
  size_t size;
  uint64_t half_written;  /* of writers that died; removed by the call */
  uint64_t being_written; /* now, by others */
};

struct terrace_file_part {
  uint64_t begin, end; /* bytes of the file */
};

struct terrace_checkpoint_verification {
  size_t size;
  uint64_t bytes;         /* of the file */
  uint64_t damaged_bytes; /* in chunks that have changed since they were written; 0: none */
  uint64_t first_damaged_begin, first_damaged_end;
  /* All of them, in order. Valid until this thread's next terrace_checkpoints_verify. */
  const struct terrace_file_part* damaged;
  size_t damaged_count;
};

struct terrace_restore_options {
  size_t size;
  const char* const* names; /* of tensors, `name_count` of them; 0: all */
  size_t name_count;
  int into_existing;  /* not 0: fill the pool's tensors of the same name, dtype and shape */
  int set_hint, hint; /* not 0: `hint`, else TERRACE_HINT_WEIGHTS */
  int set_flags;      /* not 0: `flags`, else TERRACE_FLAG_READ_MOSTLY */
  uint32_t flags;
  int reserved; /* 0 */
  const struct terrace_transfer* transfer;
};

struct terrace_export_options {
  size_t size;
  const char* const* names;
  size_t name_count;
  int replace;  /* not 0: a file that exists */
  int reserved; /* 0 */
  const struct terrace_transfer* transfer;
};

/* Makes the directory if it does not exist, unless existing_only is not 0. */
terrace_code terrace_checkpoints_open(const char* path, int existing_only, terrace_checkpoints** directory);
void terrace_checkpoints_free(terrace_checkpoints* directory);

/* Calls `each` for every checkpoint, by name, until it returns another value than 0. `damage`: NULL, or the
 * text of the damage; then only the name of `info` is set. Both are valid during the call. Removes files of
 * dead writers. leftovers: may be NULL. */
terrace_code terrace_checkpoints_list(terrace_checkpoints* directory,
                                      int (*each)(void* context, const struct terrace_checkpoint_info* info,
                                                  const char* damage),
                                      void* context, struct terrace_checkpoint_leftovers* leftovers);
terrace_code terrace_checkpoints_find(const terrace_checkpoints* directory, const char* name,
                                      struct terrace_checkpoint_info* info);
/* TERRACE_OK also where bytes are damaged: `verification` says so. */
terrace_code terrace_checkpoints_verify(const terrace_checkpoints* directory, const char* name,
                                        const struct terrace_transfer* transfer,
                                        struct terrace_checkpoint_verification* verification);
/* The pool's tensors that were made or filled, in the order of their bytes in the file. A tensor that was made
 * lives as long as the list, or a handle from the list. */
terrace_code terrace_checkpoints_restore(const terrace_checkpoints* directory, const char* name,
                                         terrace_pool* pool, const struct terrace_restore_options* options,
                                         terrace_tensors** tensors);
terrace_code terrace_checkpoints_import(terrace_checkpoints* directory, const char* file, const char* name,
                                        const struct terrace_transfer* transfer);
terrace_code terrace_checkpoints_export(const terrace_checkpoints* directory, const char* name,
                                        const char* file, const struct terrace_export_options* options);
terrace_code terrace_checkpoints_remove(terrace_checkpoints* directory, const char* name);

size_t terrace_tensors_count(const terrace_tensors* tensors);
/* A handle of its own. */
terrace_code terrace_tensors_get(const terrace_tensors* tensors, size_t index, terrace_tensor** tensor);
/* The value of that key in the checkpoint's metadata; NULL: none. Valid until the list is freed. */
const char* terrace_tensors_metadata(const terrace_tensors* tensors, const char* key);
void terrace_tensors_free(terrace_tensors* tensors);

/* Between two steps: nobody stores to the tensors during this call. When it returns the program may store,
 * while the moment's bytes go to the disk. */
terrace_code terrace_checkpoint_begin(terrace_checkpoints* directory, const char* name, terrace_pool* pool,
                                      terrace_tensor* const* tensors, size_t tensor_count,
                                      const struct terrace_checkpoint_options* options,
                                      terrace_checkpoint** checkpoint);
int terrace_checkpoint_done(const terrace_checkpoint* checkpoint);
/* TERRACE_BUSY: not done after timeout_ns, it goes on. Else the result of the writing. */
terrace_code terrace_checkpoint_wait(terrace_checkpoint* checkpoint, uint64_t timeout_ns);
terrace_code terrace_checkpoint_get_progress(const terrace_checkpoint* checkpoint,
                                             struct terrace_checkpoint_progress* progress);
/* terrace_checkpoint_wait says TERRACE_CANCELLED soon, unless it was complete already. */
void terrace_checkpoint_cancel(terrace_checkpoint* checkpoint);
/* Cancels a checkpoint that is not done, and leaves no file of it. */
void terrace_checkpoint_free(terrace_checkpoint* checkpoint);

/* ---- models in place: what `terrace tensor import` put into a lease, or files (model.h) ---- */

typedef struct terrace_model terrace_model;

/* A tensor of a model. Texts and bytes are the model's: valid until it is freed. */
struct terrace_model_tensor {
  size_t size;
  const char* name;
  /* Stores stay in this process where terrace_model_takes_stores() is 1; else they end it. */
  const void* data;
  uint64_t bytes;
  int dtype; /* TERRACE_DTYPE_... */
  int hint;  /* TERRACE_HINT_... */
  uint32_t rank;
  uint64_t dimensions[TERRACE_RANK_MAX]; /* elements */
  int64_t strides[TERRACE_RANK_MAX];     /* elements */
};

/* Attaches the lease to read, by id, or by label when the id is 0. TERRACE_NOT_FOUND: no such lease, or no model in
 * it; TERRACE_BUSY: it is being imported. The model keeps lease and session. */
terrace_code terrace_model_open(terrace_session* session, uint64_t id, const char* label,
                                terrace_model** model);
terrace_code terrace_model_of_lease(terrace_lease* lease, terrace_model** model);
/* A safetensors or GGUF file, an index of shards (model.safetensors.index.json), or a folder with one of them. */
terrace_code terrace_model_open_files(const char* path, terrace_model** model);
size_t terrace_model_count(const terrace_model* model);
/* In the order of their bytes. */
terrace_code terrace_model_get(const terrace_model* model, size_t index, struct terrace_model_tensor* tensor);
terrace_code terrace_model_find(const terrace_model* model, const char* name,
                                struct terrace_model_tensor* tensor);
size_t terrace_model_metadata_count(const terrace_model* model);
/* "" beyond the last one. */
const char* terrace_model_metadata_key(const terrace_model* model, size_t index);
const char* terrace_model_metadata_value(const terrace_model* model, size_t index);
int terrace_model_takes_stores(const terrace_model* model);
/* Compares the tensors of a lease with the checksums of the import. TERRACE_CORRUPT: the text names the tensor. */
terrace_code terrace_model_verify(const terrace_model* model);
void terrace_model_free(terrace_model* model);

/* ---- DLPack: for torch, numpy, jax, ... without a copy (dlpack.h) ---- */

struct DLManagedTensor;          /* as in DLPack's own header */
struct DLManagedTensorVersioned; /* since DLPack 1.0 */

/* The memory is kept until the deleter is called, also if all handles are freed before. */
terrace_code terrace_dlpack_tensor(const terrace_tensor* tensor, struct DLManagedTensor** managed);
/* read_only: not 0 marks it so. */
terrace_code terrace_dlpack_tensor_versioned(const terrace_tensor* tensor, int read_only,
                                             struct DLManagedTensorVersioned** managed);
/* kDLCUDA on a GPU, kDLCPU on an emulated device. A guard to read gives read-only memory, which only the
 * versioned struct can say. */
terrace_code terrace_dlpack_device_guard(const terrace_device_guard* guard, struct DLManagedTensor** managed);
terrace_code terrace_dlpack_device_guard_versioned(const terrace_device_guard* guard,
                                                   struct DLManagedTensorVersioned** managed);
/* A version read in place, always marked read-only; it stays pinned until the deleter is called. */
terrace_code terrace_dlpack_pin_versioned(const terrace_pin* pin, struct DLManagedTensorVersioned** managed);

#ifdef __cplusplus
}
#endif

#endif
