// A tensor space: named tensors in memory that several processes, on one or several hosts, write and read at
// once; usually a lease of mode shared_coherent, mapped. It has a fixed number of parts. Each holder owns one,
// with records of its own and as much of the data as its tensors need: it creates, writes and removes tensors
// there, and reads those of all parts, by copy or in place. A holder that only reads owns no part: to read in
// place it takes one of the space's seats.
//
//   a reader never gets a torn tensor, nor an older one than was published before it asked
//   a writer that dies leaves the last published version of a double-buffered tensor, readable at once
//   no step needs the other side: no lock is shared, no holder waits for one that died
//   a lease that ends is an error, lease_expired, of every call from then on; all objects can be destroyed
//
// What is left to the holder: loads and stores of its own in place, through TensorPin::bytes() and
// TensorWrite::bytes(), get the SIGBUS when the lease ends. read(), publish() and fill() do not, unless the thread has
// begun to block SIGBUS after its first call.
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

// A property of the memory: whether the hardware keeps the caches of all hosts that map it coherent. A space
// that claims more than is true loses bytes.
enum class SpaceCoherence : uint8_t {
  coherent,     // one host, or a fabric with hardware coherence: a check for news is one load
  noncoherent,  // cache lines are written back and dropped explicitly (x86-64)
};

// Which kind of source makes holders the owners of parts. Two kinds know nothing of each other's owners, so a
// space has one, and says so: what it was formatted for, or else the kind of its first owner.
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
  // Nothing: for memory of a lease (lease_of_memory()), what the operator says of its pool (space_coherence()).
  // For other memory `coherent`, but `noncoherent`, which is right everywhere, for a DAX device: nobody says what
  // pool it is of.
  std::optional<SpaceCoherence> coherence = std::nullopt;
  // Every published slot has a crc32c, which every reader compares. Nothing: where coherence is noncoherent.
  std::optional<bool> checksums = std::nullopt;
  LeaseEpoch lease_epoch = {};  // of the lease that the memory belongs to
  // As many holders at once that read in place and own no part; with the parts at most 64. Nothing: 8, or what
  // the parts leave.
  std::optional<uint32_t> seats = std::nullopt;
  std::optional<SpaceOwnership> ownership = std::nullopt;  // nothing: the first owner's
};

// What a part says of the last one who owned it.
struct LastOwner {
  uint64_t epoch = 0;      // 0: it never had one
  bool gave_back = false;  // it left in order; else it lives, or died
};

// Who may own which part. A part has one owner at a time, each under a greater epoch than the one before.
//
// Threads   Any.
class OwnershipSource {
 public:
  virtual ~OwnershipSource() = default;
  // Makes the caller the owner of `part`, and says under which epoch. `last_epoch` reads the epoch of the last
  // owner from the part; it is called when nobody else can become the owner any more.
  // Errors    busy  another holder owns it
  virtual Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) = 0;
  // The same, as TensorSpace::attach asks it, for a source that also heeds how the last owner left.
  virtual Result<uint64_t> claim_after(uint32_t part, const std::function<LastOwner()>& last_owner) {
    return claim(part, [&] { return last_owner().epoch; });
  }
  virtual void release(uint32_t part) = 0;
  // Whether the owner under `epoch` can store nothing any more, and nothing of what it stored is still in a
  // cache of its host. false when in doubt.
  virtual bool is_dead(uint32_t part, uint64_t epoch) = 0;
  // A part beyond the space's last is a seat: numbers `parts` to `parts` + seats - 1.
  virtual SpaceOwnership kind() const { return SpaceOwnership::program; }
};

// Ownership among the processes of one machine that map one file: open-file-description locks on bytes far
// behind its end. The kernel drops them when the process is gone, however it went. A child that was forked and
// lives on keeps its parent's parts alive, and can do nothing with them. `space_offset` is where the space
// begins in the file, when it is not the only one there. Not for a lease that may move: its new memory is
// another file, without the locks.
//
// Errors    permission_denied  the file cannot be opened again by this process (it needs a description of its
//                              own, as descriptors of one lease may share one)
Result<std::shared_ptr<OwnershipSource>> ownership_by_locks(int fd, uint64_t space_offset = 0);

// Ownership as the manager grants it, for the space of a lease of mode shared_coherent: durable there, so that
// an epoch is never given twice, and seen by `terrace lease show`. A part is its process's until that gives it
// back or has ended, whatever becomes of connections and of the manager meanwhile; while the manager is away
// nobody is said to be dead. Also for leases that move, and for processes that may not open files of others.
// All holders of a space use one kind of source; a lease has one space with this one. The lease's Session must
// live as long as parts are owned.
//
// Errors    permission_denied  the lease is attached read-only
//           of claim: those of Lease::claim_part()
Result<std::shared_ptr<OwnershipSource>> ownership_by_manager(std::shared_ptr<class Lease> lease);

// What SpaceOptions::coherence should be for a space in that lease: coherent where the operator says so of its
// pool, and noncoherent, which is right everywhere, where nothing or the contrary was said.
SpaceCoherence space_coherence(const struct LeaseInfo& lease);

namespace coherence {
struct Located;
}

// Which tensor it is: one that was created later, under the same name or in the same place, has another.
struct TensorIdentity {
  const void* memory = nullptr;  // of the space, as mapped in this process
  uint32_t part = 0, record = 0;
  uint64_t incarnation = 0;
  bool operator==(const TensorIdentity&) const = default;
};

// A tensor that was created or found, for use with spaces on the same mapped memory. Stays valid as a value as
// long as that is mapped and not formatted anew; once the tensor is removed every use says not_found.
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
  // What the word of a tensor says that is stable at `version`.
  static constexpr uint64_t stable_word(uint64_t version) { return uint64_t{3} << 62 | version; }

  const uint64_t* coherent_word_ = nullptr;  // where one load is enough
  const void* base_ = nullptr;               // of the memory that it was found in
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

// A version that is read in place: its bytes stay as they are until this is destroyed. While it lives the
// tensor cannot be removed, and its writer cannot go further than the other slot of a double-buffered tensor.
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

// A slot that is being written. Fill all of bytes(), whose content is undefined, then publish(). Destroyed
// without it, a double-buffered tensor keeps its content, under a greater number, and the content of another is
// lost. Other threads' stores that go past the caches (movnt) need an sfence of theirs before publish().
//
// Ownership  Uses the space, which must outlive it.
class TensorWrite {
 public:
  TensorWrite(TensorWrite&& other) noexcept;
  TensorWrite& operator=(TensorWrite&&) = delete;
  ~TensorWrite();

  std::span<std::byte> bytes() const;
  // Copies into all of bytes(), and survives the end of the lease, as plain stores to bytes() do not.
  // Errors    lease_expired     the memory is gone
  //           invalid_argument  `from` has another length
  Status fill(std::span<const std::byte> from);
  // Visible to every holder when it returns. Returns the new version; 0 in a forked child, and when the lease
  // has ended (TensorSpace::health() says so): nothing is published.
  uint64_t publish();

 private:
  template <typename Memory>
  friend class SpaceOf;
  struct State;
  explicit TensorWrite(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// When a holder that is to own a part becomes the owner of one.
enum class PartClaim : uint8_t {
  at_once,      // in attach()
  when_needed,  // in the first call that needs it: create(), or write(), publish() and remove() of a tensor, whose
                // part it is then. Until then it is a holder without a part, which pins from a seat
};

struct AttachOptions {
  // Where the right to own a part comes from. None: this holder only reads, and only by copy.
  std::shared_ptr<OwnershipSource> ownership = nullptr;
  // false: for a holder that only reads. `ownership` is asked who is dead, so that this holder is told at once
  // that a writer died over the only slot, and for a seat at the first pin(). No part is taken, so none is kept
  // from a writer that is started again.
  bool own_a_part = true;
  // Nothing: the first that a dead owner left behind, or else the first that can be had.
  std::optional<uint32_t> part = std::nullopt;
  uint64_t host = 0;  // for people: who owns which part
  // when_needed: for programs of which nobody knows whether they will write. One that opens, reads and pins takes
  // no part from a writer that is started again, unless the space has no seat left: then one that nobody had
  // or that was given back. A `part` that is named is claimed at once.
  PartClaim claim = PartClaim::at_once;
};

struct CreateOptions {
  bool double_buffered =
      true;  // the last version stays readable while the next one is written; twice the bytes
  uint64_t wait_ns = 1'000'000'000;  // while others create the same name
  bool peers_may_remove = false;     // remove() by holders of other parts, and of none, has its owner remove it
};

// Ownership  Borrows the memory, which must stay mapped.
// Threads    All calls from any thread. Errors are about the tensor named in their text.
// Errors     Of every call: lease_expired when the memory went away, whatever the manager or the Session has
//            said of the lease by then. It is for good: attach again once there is a new lease.
class TensorSpace {
 public:
  // Makes an empty space of `memory`. Nobody may have it attached.
  // Errors    invalid_argument    numbers out of bounds, memory not aligned to 64 bytes; options.coherence is
  //                               coherent and the memory a lease's whose pool is noncoherent
  //           as Lease::info()    the memory is a lease's, and its pool's coherence is asked
  //           capacity_exhausted  the memory is too small for these numbers; says how much is needed
  static Status format(std::span<std::byte> memory, const SpaceOptions& options = {});

  // Errors    not_found, version_mismatch, corrupt  as CatalogReader::open
  //           busy               all parts (or the one that is wanted) are owned by others
  //           invalid_argument   the space has no such part
  //           unsupported        a noncoherent space on a processor without cache-line write-back
  //           permission_denied  the space has owners by another kind of source than `ownership`, or was
  //                              formatted for one; says which
  //           permission_denied, limit_exceeded  the source refuses the part, or each that nobody owns: its
  //                              last owner was by another kind of source, or its epochs are used up
  //           others of the source's claim(), such as unavailable (the manager is away; `ownership` is of the
  //                              process that forked this one), at the first part that answers so
  static Result<std::unique_ptr<TensorSpace>> attach(std::span<std::byte> memory, AttachOptions options = {});

  virtual ~TensorSpace() = default;  // gives the part back; pins and writes must be gone

  virtual std::optional<uint32_t> part() const = 0;  // of this holder, once it has one
  // Of a holder that pinned when it had no part.
  virtual std::optional<uint32_t> seat() const { return std::nullopt; }
  virtual uint32_t parts() const = 0;
  virtual SpaceCoherence coherence() const = 0;
  // For names and data of this holder, now: what is free beside its tensors, and what no holder has, which all
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
  // One of another part, which its owner created with peers_may_remove, is asked for: its owner removes it in its
  // next create(), write(), publish() or remove(), a millisecond later at most, or in tend(). It takes a word of
  // pins_per_part meanwhile, and where this holder owns no part, a seat.
  // Errors    permission_denied  another holder's, without peers_may_remove; or this holder only copies
  //           busy               somebody reads it in place, or it is being written, or its owner has not done it
  //                              within wait_ns, but still may
  //           unavailable        its owner died: who owns the part next may remove it
  //           limit_exceeded     no word left to ask with
  //           not_found          it is removed already
  virtual Status remove(const SharedTensor& tensor, uint64_t wait_ns = 0) = 0;
  // Removes what other holders ask for now. For an owner that may make no other call for longer than they wait.
  // Returns how many.
  virtual uint64_t tend() { return 0; }

  // The newest version, or an error as in read().
  virtual Result<uint64_t> version(const SharedTensor& tensor) = 0;
  // Whether a local copy of `version` is the newest: one load and a compare where the memory is coherent and it
  // is. false: read() says why.
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
  // Until there is a version of at least `version` (0: any). Polls. Returns its number. A write that was given
  // up and a part's new owner may give the same content a greater number.
  // Errors    as read(); busy: not within wait_ns
  virtual Result<uint64_t> wait_for_version(const SharedTensor& tensor, uint64_t version, uint64_t wait_ns) = 0;

  // Errors    permission_denied  another holder's, which lives: also for PartClaim::when_needed
  //           busy               another thread writes it, or its slot is read in place
  //           not_found          it was removed
  virtual Result<TensorWrite> write(const SharedTensor& tensor, uint64_t wait_ns = 0) = 0;
  // The same with bytes that are there already.
  virtual Result<uint64_t> publish(const SharedTensor& tensor, std::span<const std::byte> bytes,
                                   uint64_t wait_ns = 0) = 0;

  // Whether the space's memory is there. Errors: lease_expired, and for good.
  virtual Status health() const { return {}; }

 protected:
  friend class TensorPin;
  // An acquiring load of a word in the space; 0 when its memory is gone.
  static uint64_t look_at(const uint64_t* word);
  virtual bool is_current_slowly(const SharedTensor& tensor, uint64_t version) = 0;
  virtual void unpin(uint32_t pin) = 0;
};

}  // namespace terrace
