// SPDX-License-Identifier: Apache-2.0
// A KV space: a cache of immutable blocks, found by key, in memory that many processes of several hosts map at
// once. The memory usually is a lease of mode shared_coherent. It outlives the programs that use it: what one
// engine puts there, another finds, also after the first one was killed or replaced.
//
//   a block is published once and never changes; it is found whole or not at all
//   a reader asks no manager, and takes no lock that somebody else could hold
//   a holder that dies loses what it had not published; its blocks stay, and others use and evict them
//   a space that is full makes room: the blocks that are worth least go, those that are read in place stay
//   a lease that ends is an error, lease_expired, of every call from then on
//
// A holder that puts blocks owns one of the space's parts: a directory, and chunks of the data, which all parts
// share. One that only reads owns no part; it takes one of the seats when it first reads in place.
//
// It is a cache: a block may be gone at the next call, and put() may find no room. What must not be lost belongs
// in a tensor space (terrace/tensor_space.h).
//
// Bytes: docs/formats/kv_space.md. Protocol: docs/design/0045-kv-space.md. Use: docs/kv.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/base/result.h"
#include "terrace/tensor_space.h"

namespace terrace {

inline constexpr uint32_t kv_key_bytes_max = 512;
inline constexpr uint32_t kv_namespace_bytes_max = 255;
inline constexpr uint64_t kv_block_bytes_limit = 64ull << 20;

// Whose blocks, and of what: keys of one namespace never meet those of another. A cache hit can be noticed by
// how long it takes, so by default each tenant has namespaces of its own; to share is to use the same one.
//
// Threads   A plain value.
class KvNamespace {
 public:
  KvNamespace() = default;  // the one without a name
  // Errors    invalid_argument  longer than kv_namespace_bytes_max, not UTF-8, or with control characters
  static Result<KvNamespace> of(std::string_view name);
  // "tenant/model/tokenizer/layout/dtype", with %2F for a / in one of them: a changed model, layout or type
  // never meets old blocks.
  static Result<KvNamespace> of(std::string_view tenant, std::string_view model, std::string_view tokenizer,
                                std::string_view layout, std::string_view dtype);
  const std::string& name() const { return name_; }
  bool operator==(const KvNamespace&) const = default;

 private:
  friend class KvSpaceBase;  // the library's own: the space's policy has a namespace that no caller can name
  std::string name_;
};

struct KvFormatOptions {
  uint32_t parts = 8;   // processes that put blocks at once; at most 64
  uint32_t seats = 24;  // processes that only read at once, in place; with the parts at most 64
  // The size that most blocks have, which gives the number of directory entries: 4 KiB to 16 MiB.
  uint64_t block_bytes = 64 << 10;
  // Blocks up to this size are taken, and larger ones as far as chunks have room: KvStat::max_block_bytes. Nothing: 16 MiB, or a 64th of the memory if that is less, but at least block_bytes.
  std::optional<uint64_t> max_block_bytes = std::nullopt;
  uint32_t pins = 1024;                                    // blocks that one process reads in place at once
  std::optional<SpaceCoherence> coherence = std::nullopt;  // as SpaceOptions::coherence
  // Blocks have a crc32c, which each reader compares, unless KvPutOptions::checksum says otherwise. Nothing: only
  // if the space is noncoherent.
  std::optional<bool> checksums = std::nullopt;
  std::optional<SpaceOwnership> ownership = std::nullopt;  // nothing: the first owner's kind
  LeaseEpoch lease_epoch = {};
};

class KvSpill;  // terrace/kv_spill.h
class KvLocal;  // terrace/kv_local.h
namespace kv {
struct LocalCopy;
}

struct KvAttachOptions {
  // The source of the right to own a part or a seat. None: this holder gets copies only, and puts nothing.
  std::shared_ptr<OwnershipSource> ownership = nullptr;
  bool puts = true;   // false: it never takes a part
  uint64_t host = 0;  // for people: the owner's host
  // A thread that does what other holders wait for while this one makes no calls: blocks that they ask to have
  // erased, room that they need, what has expired. false: call tend() now and then.
  bool tends_itself = true;
  // Where blocks go that are evicted because of room, and where those are looked for that are not in the space. A get
  // that finds one there for the second time, and each view, puts it back into the space.
  std::shared_ptr<KvSpill> spill = nullptr;
  // Where copies of hot blocks are, in this process's own memory: get() and view() answer from them.
  std::shared_ptr<KvLocal> local = nullptr;
};

struct KvPutOptions {
  std::string_view parent = {};  // the key of the block before it in the prompt, of the same namespace
  uint64_t ttl_s = 0;            // seconds until it is gone by itself; 0: never
  // How long to wait for holders that have more than their share to give room; put_many() waits no longer for all of its
  // blocks together.
  uint64_t wait_ns = 50'000'000;
  std::optional<bool> checksum = std::nullopt;  // nothing: as the space was formatted
};

// A block that is read in place, or its local copy: its bytes stay while this lives. When the process ends so does this.
//
// Ownership  Uses the space, which must outlive it.
class KvView {
 public:
  KvView() = default;
  KvView(KvView&& other) noexcept;
  KvView& operator=(KvView&& other) noexcept;
  ~KvView() { reset(); }

  // 64-byte aligned; SIGBUS when the lease ends. Of a local copy they lie outside of the space's memory, and stay.
  std::span<const std::byte> bytes() const { return bytes_; }
  void reset();

 private:
  template <typename Memory>
  friend class KvSpaceOf;
  class KvSpace* space_ = nullptr;
  uint32_t pin_ = 0;
  kv::LocalCopy* copy_ = nullptr;  // in the place of space and pin
  std::span<const std::byte> bytes_;
};

// Room for a block, to be filled in place. Nobody finds it before publish(). Destroyed without that, it is free.
//
// Ownership  Uses the space, which must outlive it.
class KvWrite {
 public:
  struct State;  // the library's own
  KvWrite(KvWrite&& other) noexcept;
  KvWrite& operator=(KvWrite&&) = delete;
  ~KvWrite();

  std::span<std::byte> bytes() const;  // 64-byte aligned, content undefined; SIGBUS when the lease ends
  // Copies into all of bytes(); lease_expired where plain stores would raise SIGBUS.
  Status fill(std::span<const std::byte> from);
  // On return every holder finds the block. Stores of other threads past the caches (movnt) need an sfence in
  // those threads before this.
  // Errors    already_exists  it was put meanwhile; this one is free again
  //           capacity_exhausted  the part has no directory entry left
  Status publish();

 private:
  template <typename Memory>
  friend class KvSpaceOf;
  explicit KvWrite(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct KvGet {
  std::string_view key;
  std::span<std::byte> into;  // at least as long as the block
};
struct KvPut {
  std::string_view key;
  std::span<const std::byte> bytes;
  KvPutOptions options = {};
};

// How many bytes the blocks of some namespaces may have, extents with names: of the one that is called `namespaces`, and of
// those whose names begin with it and a "/". Empty: of all. "team-a" is a tenant's budget, "team-a/llama" a model's.
struct KvBudget {
  std::string namespaces;
  uint64_t bytes = 0;
  bool operator==(const KvBudget&) const = default;
};
// What no want of room takes: a block, if `key` is not empty, of the namespace called `namespaces`; else all blocks of
// `namespaces`, as in KvBudget. Of a chain the last block keeps those before it.
struct KvKept {
  std::string namespaces;
  std::string key = {};
  bool operator==(const KvKept&) const = default;
};
// An operator's word, which the space has until there is another one. At most 256 of each.
struct KvPolicy {
  std::vector<KvBudget> budgets = {};
  std::vector<KvKept> kept = {};
  bool operator==(const KvPolicy&) const = default;
};

struct KvBlockInfo {
  std::string name_space;
  std::string key;
  uint64_t bytes = 0;
  uint32_t part = 0;
  uint64_t expires_unix_s = 0;  // 0: never
  uint64_t used_unix_s = 0;     // put, or last known use, to some seconds
  bool has_parent = false;
  bool has_checksum = false;
  uint32_t member = 0;  // by index in KvStat::members
};

struct KvPartInfo {
  uint32_t part = 0;
  uint64_t host = 0;
  std::string state =
      {};  // "unused", "owned", "left" (in order) or "dead"; "owned" also when that is not known
  uint64_t blocks = 0;
  uint64_t block_bytes = 0;
  uint64_t chunk_bytes = 0;  // of the data, that it has now
  uint32_t member = 0;       // by index in KvStat::members
};

// A lease or a file of a space that has several (terrace/kv_members.h).
struct KvMemberInfo {
  std::string where;       // a lease's id or label, or a path; empty: not known, the only one
  std::string state = {};  // "filling", "leaving" or "lost"
  std::string loss = {};   // why it is lost
  uint64_t data_bytes = 0, free_bytes = 0;
  uint64_t blocks = 0, block_bytes = 0;
  // Its policy is not the space's newest, as who set that died or did not reach it: a holder with a part of it puts it there.
  bool older_policy = false;
};

struct KvBudgetUse {
  KvBudget budget;
  uint64_t used_bytes = 0;
};

struct KvStat {
  uint64_t data_bytes = 0;
  uint64_t free_bytes = 0;  // in chunks of no part
  uint64_t blocks = 0;
  uint64_t block_bytes = 0;
  uint64_t blocks_max = 0;
  uint64_t max_block_bytes = 0;
  SpaceCoherence coherence = SpaceCoherence::coherent;
  bool checksums = false;
  std::vector<KvPartInfo> parts = {};
  std::vector<KvBudgetUse> budgets = {};
  uint64_t kept_bytes = 0;  // of blocks that the policy keeps
  // Of this process: copies of this space's blocks, and what copies of all of its spaces may have.
  uint64_t local_blocks = 0, local_bytes = 0, local_max_bytes = 0;
  std::vector<KvMemberInfo> members = {};  // one at least
};

// What this holder did since it attached.
struct KvCounters {
  uint64_t hits = 0, misses = 0;  // of get() and view(); exists() counts as neither
  uint64_t hit_bytes = 0;
  uint64_t puts = 0, put_bytes = 0;
  uint64_t puts_refused = 0;  // no room, also after waiting
  uint64_t evicted = 0, evicted_bytes = 0, expired = 0, erased = 0;
  uint64_t chunks_given = 0;   // to holders that needed room
  uint64_t parts_adopted = 0;  // dead or left ones, to evict from
  uint64_t spilled = 0;        // evicted blocks that were given to the spill
  uint64_t spill_hits = 0;     // of the hits, that came from there
  uint64_t spill_dropped = 0;  // evicted blocks that it did not take: its queue was full, or its disk fails
  uint64_t local_hits = 0, local_hit_bytes = 0;   // of the hits, from local copies
  uint64_t local_copied = 0;                      // blocks that got one
  uint64_t local_evicted = 0;                     // copies that made room for others
  uint64_t local_stale = 0;                       // copies whose block was gone when they were asked for
  uint64_t members_joined = 0, members_lost = 0;  // beside the first one
};

struct KvVerified {
  uint64_t blocks = 0, bytes = 0;  // that were compared
  uint64_t without_checksum = 0;
  uint64_t changed = 0;            // gone before they were read
  std::vector<KvBlockInfo> wrong;  // bytes that do not have their checksum
};

// Ownership  Borrows the memory, which must stay mapped.
// Threads    All calls from any thread.
// Errors     Of every call: lease_expired when the memory is gone, which is permanent; invalid_argument for a key
//            that is empty or longer than kv_key_bytes_max. In a forked child calls that store are unavailable, and
//            the others answer as in the parent.
class KvSpace {
 public:
  // Makes an empty space of `memory`. Nobody may have it attached.
  // Errors    as TensorSpace::format
  static Status format(std::span<std::byte> memory, const KvFormatOptions& options = {});
  // Errors    as TensorSpace::attach, but that a part is claimed by the first put
  static Result<std::unique_ptr<KvSpace>> attach(std::span<std::byte> memory, KvAttachOptions options = {});
  virtual ~KvSpace() = default;  // gives part and seat back; views and writes must be gone

  // found[i]: whether keys[i] is there. `found` is as long as `keys`.
  virtual Status exists(const KvNamespace& name_space, std::span<const std::string_view> keys,
                        std::span<bool> found) = 0;
  // How many of the first keys are there without a gap: a prompt's cached prefix.
  virtual Result<uint64_t> prefix(const KvNamespace& name_space, std::span<const std::string_view> keys) = 0;

  // Copies the block; returns its length.
  // Errors    not_found
  //           invalid_argument  `into` is shorter than the block; says how long it is
  //           corrupt           it does not have its checksum
  virtual Result<uint64_t> get(const KvNamespace& name_space, const KvGet& get) = 0;
  virtual std::vector<Result<uint64_t>> get_many(const KvNamespace& name_space,
                                                 std::span<const KvGet> gets) = 0;
  // The length of a block. Errors: not_found
  virtual Result<uint64_t> length(const KvNamespace& name_space, std::string_view key) = 0;
  // Errors    as get(); limit_exceeded (no pin left); permission_denied (attached without ownership); busy (no
  //           seat left for this holder)
  virtual Result<KvView> view(const KvNamespace& name_space, std::string_view key) = 0;

  // Errors    already_exists      somebody has put it: as good as done
  //           capacity_exhausted  no room now, in the space or in a budget: what is there is read in place or kept, or
  //                               belongs to holders that live and give none
  //           limit_exceeded      longer than the space's max_block_bytes, or than a budget
  //           busy                all parts are owned
  //           permission_denied   attached to read only
  virtual Status put(const KvNamespace& name_space, const KvPut& put) = 0;
  virtual std::vector<Status> put_many(const KvNamespace& name_space, std::span<const KvPut> puts) = 0;
  // `bytes`: the block's length. Errors: as put()
  virtual Result<KvWrite> begin_put(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                                    const KvPutOptions& options = {}) = 0;

  // Errors    not_found
  //           busy         read in place, or the owner of its part has not done it within wait_ns
  //           permission_denied  attached without ownership
  virtual Status erase(const KvNamespace& name_space, std::string_view key,
                       uint64_t wait_ns = 1'000'000'000) = 0;

  // Every block there is, in no order, until `each` returns false. A snapshot of each, not of all.
  virtual Status list(const std::function<bool(const KvBlockInfo&)>& each) = 0;
  virtual Result<KvStat> stat() = 0;
  virtual KvCounters counters() const = 0;
  // Compares every block with its checksum, if it has one, and its name with its directory entry.
  virtual Result<KvVerified> verify() = 0;
  // Has the blocks that were not used for longest and are not kept erased, until `bytes` are gone. Returns how many blocks are.
  virtual Result<uint64_t> evict(uint64_t bytes) = 0;
  // Erases all blocks of one namespace, or all, also those that have expired; those of other holders at their next tend().
  // Returns how many are gone; `busy` beside it: some are left after wait_ns, read in place or their owner stopped.
  virtual Result<uint64_t> flush(const std::optional<KvNamespace>& name_space,
                                 uint64_t wait_ns = 5'000'000'000) = 0;

  // Budgets, and what is kept. Each holder hears of another policy within some seconds. A holder that is new learns what others have of a
  // budget in its first seconds; until then it takes an equal share at most. An owner that is stopped gives nothing up.
  virtual Result<KvPolicy> policy() = 0;
  // In the place of the one there is.
  // Errors    invalid_argument  an entry makes no sense; says which
  //           busy              all parts are owned, or an owner did not give up the older policy yet
  //           capacity_exhausted  no room for it; permission_denied  attached to read only
  virtual Status set_policy(const KvPolicy& policy) = 0;

  // Does what others wait for; see KvAttachOptions::tends_itself.
  virtual void tend() = 0;
  virtual std::optional<uint32_t> part() const = 0;  // of this holder, once it has put something
  virtual Status health() const = 0;

 protected:
  friend class KvView;
  virtual void unpin(uint32_t pin) = 0;
};

}  // namespace terrace
