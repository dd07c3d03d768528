// SPDX-License-Identifier: Apache-2.0
// A tensor space: named tensors in memory that several processes, on one or several hosts, write and read at
// once. The memory usually is a mapped lease of mode shared_coherent. A space has a fixed number of parts. A
// holder owns one, with its own records and as much data as its tensors need. It creates, writes and removes
// tensors in its part, and reads tensors of all parts, by copy or in place. A holder that only reads owns no
// part: to read in place it takes one of the space's seats.
//
//   a reader never gets a torn tensor, nor a version older than the newest at the time of the call
//   a writer that dies leaves the last published version of a double-buffered tensor, readable at once
//   no step needs the other side: no lock is shared, no holder waits for one that died
//   a lease that ends is an error, lease_expired, of every call from then on; all objects can be destroyed
//
// The holder's own loads and stores in place, through TensorPin::bytes() and TensorWrite::bytes(), raise SIGBUS
// when the lease ends. read(), publish() and fill() do not, unless the thread has begun to block SIGBUS after
// its first call.
//
// Bytes: docs/formats/tensor_space.md. Protocol: docs/design/0015-coherence.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/base/result.h"
#include "terrace/catalog.h"
#include "terrace/tensor.h"

namespace terrace {

// A property of the memory: does the hardware keep the caches of all hosts that map it coherent? A space that
// is `coherent` on noncoherent memory loses bytes.
enum class SpaceCoherence : uint8_t {
  coherent,     // one host, or a fabric with hardware coherence: a check for news is one load
  noncoherent,  // cache lines are written back and dropped explicitly (x86-64)
};

// The kind of source that gives holders the ownership of parts. A source does not know owners by another kind.
// So a space has one kind and records it: the kind of its format() call, or else of its first owner.
enum class SpaceOwnership : uint8_t {
  manager = 1,  // ownership_by_manager
  hosts = 2,    // ownership_by_host_ranges
  locks = 3,    // ownership_by_locks
  program = 4,  // a source that the program made
};

struct SpaceOptions {
  uint32_t parts = 8;                // as many holders that write at once; at most 64
  uint32_t records_per_part = 4096;  // rounded up to a power of two; three quarters of them can be in use
  uint32_t pins_per_part = 256;      // tensors that one holder reads in place at once
  // Nothing: for memory of a lease (lease_of_memory()), the operator's statement about its pool
  // (space_coherence()). For a DAX device, whose pool is not known, `noncoherent`, which is right everywhere.
  // For other memory `coherent`.
  std::optional<SpaceCoherence> coherence = std::nullopt;
  // Every published slot has a crc32c, which every reader compares. Nothing: only if the space is noncoherent.
  std::optional<bool> checksums = std::nullopt;
  LeaseEpoch lease_epoch = {};  // of the lease that the memory belongs to
  // The number of holders without a part that can read in place at once; with the parts at most 64. Nothing: 8,
  // or 64 less the parts.
  std::optional<uint32_t> seats = std::nullopt;
  std::optional<SpaceOwnership> ownership = std::nullopt;  // nothing: the first owner's
};

// A part's record of its last owner.
struct LastOwner {
  uint64_t epoch = 0;      // 0: it never had one
  bool gave_back = false;  // it left in order; else it lives, or died
};

// Decides who owns which part. A part has one owner at a time, each under a greater epoch than the one before.
//
// Threads   Any.
class OwnershipSource {
 public:
  virtual ~OwnershipSource() = default;
  // Makes the caller the owner of `part`, and returns its epoch. `last_epoch` reads the epoch of the last owner
  // from the part; it is called when no other caller can become the owner any more.
  // Errors    busy  another holder owns it
  virtual Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) = 0;
  // The same, for a source that also needs to know how the last owner left. TensorSpace::attach calls this one.
  virtual Result<uint64_t> claim_after(uint32_t part, const std::function<LastOwner()>& last_owner) {
    return claim(part, [&] { return last_owner().epoch; });
  }
  virtual void release(uint32_t part) = 0;
  // true: the owner under `epoch` can store nothing any more, and no store of it is still in a cache of its
  // host. false when in doubt.
  virtual bool is_dead(uint32_t part, uint64_t epoch) = 0;
  // A part beyond the space's last is a seat: numbers `parts` to `parts` + seats - 1.
  virtual SpaceOwnership kind() const { return SpaceOwnership::program; }
};

// Ownership among the processes of one machine that map one file: open-file-description locks on bytes far
// behind its end. The kernel drops them when the process is gone, for any reason. A forked child that lives on
// keeps its parent's parts alive, and cannot use them. `space_offset`: the begin of the space in the file, if
// the file has several. Not for a lease that may move: its new memory is another file, without the locks.
//
// Errors    permission_denied  the file cannot be opened again by this process (it needs a description of its
//                              own, as descriptors of one lease may share one)
Result<std::shared_ptr<OwnershipSource>> ownership_by_locks(int fd, uint64_t space_offset = 0);

// Ownership by the manager, for the space of a lease of mode shared_coherent. It is durable there, so no epoch
// is given twice, and `terrace lease show` shows it. A part belongs to its process until the process gives it
// back or ends; broken connections and restarts of the manager change nothing. While the manager is away,
// is_dead() says false. Also for leases that move, and for processes that may not open files of others. All
// holders of a space use one kind of source; a lease has one space with this one. The lease's Session must
// live as long as parts are owned.
//
// Errors    permission_denied  the lease is attached read-only
//           of claim: those of Lease::claim_part()
Result<std::shared_ptr<OwnershipSource>> ownership_by_manager(std::shared_ptr<class Lease> lease);

// The value of SpaceOptions::coherence for a space in that lease: coherent if the operator says so of its pool;
// else noncoherent, which is right everywhere.
SpaceCoherence space_coherence(const struct LeaseInfo& lease);

namespace coherence {
struct Located;
}

// The identity of a tensor: a later tensor with the same name or in the same place has another one.
struct TensorIdentity {
  const void* memory = nullptr;  // of the space, as mapped in this process
  uint32_t part = 0, record = 0;
  uint64_t incarnation = 0;
  bool operator==(const TensorIdentity&) const = default;
};

// A tensor from create() or open(), for use with spaces on the same mapped memory. Stays valid as a value while
// that memory is mapped and not formatted again. After the tensor's removal every use fails with not_found.
//
// Threads   A plain value.
class SharedTensor {
 public:
  std::string_view name() const { return name_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  TensorHint hint() const { return hint_; }
  uint8_t flags() const { return flags_; }
  uint64_t bytes() const { return bytes_; }
  uint32_t part() const { return part_; }
  bool double_buffered() const { return double_buffered_; }
  TensorIdentity identity() const;  // memory nullptr: neither created nor opened

 private:
  template <typename Memory>
  friend class SpaceOf;
  friend class TensorSpace;
  // The word of a tensor that is stable at `version`.
  static constexpr uint64_t stable_word(uint64_t version) { return uint64_t{3} << 62 | version; }

  const uint64_t* coherent_word_ = nullptr;  // set if one load is enough
  const void* base_ = nullptr;               // of the memory that has the tensor
  std::shared_ptr<const coherence::Located> located_;
  std::string_view name_;  // in located_'s block
  Shape shape_;
  Strides strides_{};
  uint64_t bytes_ = 0;
  uint32_t part_ = 0;
  DType dtype_ = DType::u8;
  TensorHint hint_ = TensorHint::none;
  uint8_t flags_ = 0;
  bool double_buffered_ = false;
};

// A version that is read in place: its bytes stay unchanged until this is destroyed. While it lives the tensor
// cannot be removed, and its writer can use only the other slot of a double-buffered tensor.
//
// Ownership  Uses the space, which must outlive it.
class TensorPin {
 public:
  TensorPin() = default;
  TensorPin(TensorPin&& other) noexcept;
  TensorPin& operator=(TensorPin&& other) noexcept;
  ~TensorPin() { reset(); }

  std::span<const std::byte> bytes() const { return bytes_; }  // 64-byte aligned
  uint64_t version() const { return version_; }
  void reset();

 private:
  template <typename Memory>
  friend class SpaceOf;
  class TensorSpace* space_ = nullptr;
  uint32_t pin_ = 0;
  uint64_t version_ = 0;
  std::span<const std::byte> bytes_;
};

// A slot that is being written. Fill all of bytes(), whose content is undefined, then publish(). If it is
// destroyed without publish(), a double-buffered tensor keeps its content under a greater version, and a
// single-buffered one loses it. Stores of other threads past the caches (movnt) need an sfence in those threads
// before publish().
//
// Ownership  Uses the space, which must outlive it.
class TensorWrite {
 public:
  TensorWrite(TensorWrite&& other) noexcept;
  TensorWrite& operator=(TensorWrite&&) = delete;
  ~TensorWrite();

  std::span<std::byte> bytes() const;
  // Copies into all of bytes(). If the lease ends it returns an error, where plain stores raise SIGBUS.
  // Errors    lease_expired     the memory is gone
  //           invalid_argument  `from` has another length
  Status fill(std::span<const std::byte> from);
  // On return the bytes are visible to every holder. Returns the new version. Returns 0 and publishes nothing
  // in a forked child, and when the lease has ended (see TensorSpace::health()).
  uint64_t publish();

 private:
  template <typename Memory>
  friend class SpaceOf;
  struct State;
  explicit TensorWrite(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The time at which a holder becomes the owner of a part.
enum class PartClaim : uint8_t {
  at_once,      // in attach()
  when_needed,  // in the first call that needs one: create(); or write(), publish() and remove(), which claim
                // the tensor's part. Until then it is a holder without a part, which pins from a seat
};

struct AttachOptions {
  // The source of the right to own a part. None: this holder only reads, and only by copy.
  std::shared_ptr<OwnershipSource> ownership = nullptr;
  // false: for a holder that only reads. `ownership` then serves for two things: to learn at once that a writer
  // died over the only slot, and for a seat at the first pin(). The holder takes no part, so a restarted writer
  // finds its part free.
  bool own_a_part = true;
  // Nothing: the first part of a dead owner, or else the first that can be had.
  std::optional<uint32_t> part = std::nullopt;
  uint64_t host = 0;  // for people: the owner's host
  // when_needed: for programs that may or may not write. While such a program only opens, reads and pins, it
  // takes no part from a restarted writer. If the space has no seat left, it takes a part that nobody had or
  // that was given back. A `part` that is named is claimed at once.
  PartClaim claim = PartClaim::at_once;
};

struct CreateOptions {
  bool double_buffered =
      true;  // the last version stays readable while the next one is written; twice the bytes
  uint64_t wait_ns = 1'000'000'000;  // while others create the same name
  bool peers_may_remove = false;     // other holders, also without a part, may ask the owner to remove() it
};

// Ownership  Borrows the memory, which must stay mapped.
// Threads    All calls from any thread. Errors are about the tensor named in their text.
// Errors     Of every call: lease_expired when the memory is gone, also before the manager or the Session has
//            reported it. It is permanent: attach again once there is a new lease.
class TensorSpace {
 public:
  // Makes an empty space of `memory`. Nobody may have it attached.
  // Errors    invalid_argument    numbers out of bounds, memory not aligned to 64 bytes; options.coherence is
  //                               coherent and the memory a lease's whose pool is noncoherent
  //           as Lease::info()    if the memory is a lease's: the call asks for its pool's coherence
  //           capacity_exhausted  the memory is too small for these numbers; says how much is needed
  static Status format(std::span<std::byte> memory, const SpaceOptions& options = {});

  // Errors    not_found, version_mismatch, corrupt  as CatalogReader::open
  //           busy               all parts (or the one that is wanted) are owned by others
  //           invalid_argument   the space has no such part
  //           unsupported        a noncoherent space on a processor without cache-line write-back
  //           permission_denied  the space has owners by another kind of source than `ownership`, or was
  //                              formatted for one; says which
  //           permission_denied, limit_exceeded  the source refuses the part, or every part without an owner:
  //                              its last owner was by another kind of source, or its epochs are used up
  //           others of the source's claim(), at the first part with such an answer. For example unavailable:
  //                              the manager is away, or `ownership` was made by the parent before a fork
  static Result<std::unique_ptr<TensorSpace>> attach(std::span<std::byte> memory, AttachOptions options = {});

  virtual ~TensorSpace() = default;  // gives the part back; pins and writes must be gone

  virtual std::optional<uint32_t> part() const = 0;  // of this holder, once it has one
  // The seat of a holder that pinned when it had no part.
  virtual std::optional<uint32_t> seat() const { return std::nullopt; }
  virtual uint32_t parts() const = 0;
  virtual SpaceCoherence coherence() const = 0;
  // For names and data of this holder, now: free bytes beside its tensors, and bytes of no holder, which all
  // share. 0 for a holder that will have no part.
  virtual uint64_t free_bytes() const = 0;
  virtual uint64_t largest_free_bytes() const = 0;  // the biggest hole among them: no tensor can be larger

  // A tensor in this holder's part, under a name that no part has. It has no content yet.
  // Errors    already_exists      open it instead
  //           busy                others were creating the same name, or claiming the last free bytes, for all
  //                               of wait_ns
  //           capacity_exhausted  no record or no hole for it; says how many bytes there are
  //           permission_denied   this holder only reads
  //           those of attach()   the first call of PartClaim::when_needed
  //           invalid_argument, limit_exceeded  name, dtype or shape
  virtual Result<SharedTensor> create(const TensorSpec& spec, const CreateOptions& options = {}) = 0;
  // O(parts); a name that was found before costs less.
  // Errors    not_found; corrupt (a record that should be it makes no sense); busy (it keeps changing)
  virtual Result<SharedTensor> open(std::string_view name) = 0;
  // Every tensor there is, in no order. A snapshot of each, not of all. None when the memory is gone: health().
  virtual std::vector<SharedTensor> list() = 0;
  // A tensor of another part, created with peers_may_remove, is removed by its owner on request: in the owner's
  // next create(), write(), publish() or remove(), a millisecond later at most, or in tend(). The request uses
  // a word of pins_per_part until then, and a seat if this holder owns no part.
  // Errors    permission_denied  another holder's, without peers_may_remove; or this holder only copies
  //           busy               a holder reads it in place, or it is being written, or its owner has not
  //                              removed it within wait_ns, but still may
  //           unavailable        its owner died: the part's next owner may remove it
  //           limit_exceeded     no word left to ask with
  //           not_found          it is removed already
  virtual Status remove(const SharedTensor& tensor, uint64_t wait_ns = 0) = 0;
  // Removes the tensors of other holders' requests. For an owner that makes no other call for a longer time
  // than they wait. Returns the number of tensors.
  virtual uint64_t tend() { return 0; }

  // The newest version, or an error as in read().
  virtual Result<uint64_t> version(const SharedTensor& tensor) = 0;
  // true: a local copy of `version` is the newest; in coherent memory that takes one load and a compare. false:
  // read() says why.
  bool is_current(const SharedTensor& tensor, uint64_t version) {
    if (tensor.coherent_word_ != nullptr &&
        look_at(tensor.coherent_word_) == SharedTensor::stable_word(version)) [[likely]]
      return true;
    return is_current_slowly(tensor, version);
  }

  // Copies the newest version into `into`, bytes() long, unless the caller has it: `known`. Returns its number.
  // Errors    busy              it is being written and has one slot, or was never published: wait longer
  //           unavailable       the only slot was being written when its writer died: nothing is there
  //           not_found         it was removed
  //           corrupt           the bytes do not have their checksum
  //           invalid_argument  `into` has another length
  virtual Result<uint64_t> read(const SharedTensor& tensor, std::span<std::byte> into, uint64_t known = 0,
                                uint64_t wait_ns = 0) = 0;
  // The newest version in place.
  // Errors    as read(); limit_exceeded (no pin left)
  //           busy               no seat is left for this holder, which owns no part
  //           permission_denied  this holder has no ownership, or the space no seats: it can only copy
  //           of the source's claim(), as attach
  virtual Result<TensorPin> pin(const SharedTensor& tensor, uint64_t wait_ns = 0) = 0;
  // Waits for a version of at least `version` (0: any). Polls. Returns its number. The same content may get a
  // greater number from a write without publish(), and from a part's new owner.
  // Errors    as read(); busy: not within wait_ns
  virtual Result<uint64_t> wait_for_version(const SharedTensor& tensor, uint64_t version, uint64_t wait_ns) = 0;

  // Errors    permission_denied  another holder's, which lives: also for PartClaim::when_needed
  //           busy               another thread writes it, or its slot is read in place
  //           not_found          it was removed
  virtual Result<TensorWrite> write(const SharedTensor& tensor, uint64_t wait_ns = 0) = 0;
  // write() and TensorWrite::publish() in one call, with finished bytes.
  virtual Result<uint64_t> publish(const SharedTensor& tensor, std::span<const std::byte> bytes,
                                   uint64_t wait_ns = 0) = 0;

  // Success while the space's memory is there. Errors: lease_expired, which is permanent.
  virtual Status health() const { return {}; }

 protected:
  friend class TensorPin;
  // An acquiring load of a word in the space; 0 when its memory is gone.
  static uint64_t look_at(const uint64_t* word);
  virtual bool is_current_slowly(const SharedTensor& tensor, uint64_t version) = 0;
  virtual void unpin(uint32_t pin) = 0;
};

}  // namespace terrace
