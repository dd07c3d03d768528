// SPDX-License-Identifier: Apache-2.0
// TensorSpace over one kind of memory. It adds to SpaceCore: errors, waiting, an index of names found
// before.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/sync/mutex.h"
#include "libclient/coherence/holder_claims.h"
#include "libclient/coherence/space_base.h"
#include "libclient/coherence/space_core.h"

namespace terrace {

template <typename Memory>
class SpaceOf final : public SpaceBase {
  using Outcome = coherence::Outcome;
  using Located = coherence::Located;

 public:
  SpaceOf(const coherence::Geometry& geometry, AttachOptions options)
      : options_(std::move(options)),
        claims_(geometry, options_.ownership, "tensor space"),
        core_(Memory(), geometry, claims_.dead_check()) {}

  // In a forked child everything here is the parent's: nothing may be stored.
  ~SpaceOf() override {
    if (forked()) return;
    if (own() != nullptr) {
      own()->release();
      options_.ownership->release(own()->part());
    }
    if (core_.seat() != nullptr) {
      core_.seat()->release();
      options_.ownership->release(core_.seat()->holder());
    }
  }

  // Errors: as TensorSpace::attach.
  Status claim() {
    if (options_.ownership == nullptr) return {};
    TERRACE_RETURN_IF_ERROR(claims_.check_kind());
    if (!options_.own_a_part) return {};
    if (options_.part && *options_.part >= core_.geometry().parts)
      return no_part(ErrorCode::invalid_argument,
                     "it has " + std::to_string(core_.geometry().parts) + " parts");
    if (options_.claim == PartClaim::when_needed && !options_.part) return {};
    return claim_part(options_.part ? std::vector<uint32_t>{*options_.part}
                                    : claims_.to_try(0, core_.geometry().parts));
  }

  std::optional<uint32_t> part() const override {
    return own() == nullptr ? std::nullopt : std::optional(own()->part());
  }
  uint32_t parts() const override { return core_.geometry().parts; }
  SpaceCoherence coherence() const override {
    return Memory::coherent ? SpaceCoherence::coherent : SpaceCoherence::noncoherent;
  }
  std::optional<uint32_t> seat() const override {
    if (!seated_.load(std::memory_order_acquire)) return std::nullopt;  // acquire: pairs with take_seat()
    return core_.seat()->holder() - core_.geometry().parts;
  }
  uint64_t free_bytes() const override { return free_space().free_bytes(); }
  uint64_t largest_free_bytes() const override { return free_space().largest_bytes(); }

  Result<SharedTensor> create(const TensorSpec& spec, const CreateOptions& options) override {
    const auto flags =
        static_cast<uint8_t>(spec.flags | (options.peers_may_remove ? TensorFlags::peers_may_remove : 0));
    TERRACE_ASSIGN_OR_RETURN(const layout::TensorShape shape,
                             coherence::plan_shape(spec.name, spec.dtype, spec.shape, spec.hint, flags,
                                                   options.double_buffered ? 2 : 1));
    FoundTensor found;
    found.name = spec.name;
    if (own() == nullptr && !claims_later()) return read_only(tensor_of(found));
    if (forked()) return in_child();
    TERRACE_RETURN_IF_ERROR(part_for_new(spec.name));
    tend_now_and_then();
    Waiting waiting(options.wait_ns);
    Outcome outcome = core_.create(spec.name, shape, &found);
    if (outcome == Outcome::full && own()->remove_what_peers_ask() > 0)
      outcome = core_.create(spec.name, shape, &found);
    // Each creator that met another waits for a time of its own, so that they do not meet again.
    while ((outcome == Outcome::raced || outcome == Outcome::crowded) && waiting.again(Outcome::writing)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20 * (own()->part() + 1)));
      outcome = core_.create(spec.name, shape, &found);
    }
    if (outcome == Outcome::done) return remember(std::move(found));
    const std::string who = "tensor " + quoted_name(spec.name);
    if (outcome == Outcome::exists) return refuse(ErrorCode::already_exists, who + " exists: open it");
    if (outcome == Outcome::disowned) return error_of(outcome, tensor_of(found), false);
    if (outcome == Outcome::full) {
      const coherence::FreeSpace free = free_space();
      return refuse(ErrorCode::capacity_exhausted,
                    who + " needs " + std::to_string(shape.extent_bytes) + " bytes and a record of part " +
                        std::to_string(own()->part()) + ", which can have " +
                        std::to_string(free.largest_bytes()) + " in one hole of " +
                        std::to_string(free.free_bytes()) + " free bytes; remove some, or format with more");
    }
    if (outcome == Outcome::crowded)
      return refuse(ErrorCode::busy, who + ": other holders are claiming the free bytes; try again");
    return refuse(ErrorCode::busy, who + " is being created by another holder; open it or try again");
  }

  Result<SharedTensor> open(std::string_view name) override {
    if (name.empty()) return refuse(ErrorCode::invalid_argument, "a tensor's name is not empty");
    if (std::optional<SharedTensor> known = recall(name)) return *std::move(known);
    FoundTensor found;
    Outcome outcome = Outcome::raced;
    for (int attempt = 0; attempt < 64 && outcome == Outcome::raced; ++attempt)
      outcome = core_.find(name, &found);
    const std::string who = "tensor " + quoted_name(name);
    if (outcome == Outcome::gone) return refuse(ErrorCode::not_found, who + " is in no part");
    if (outcome == Outcome::corrupt)
      return refuse(ErrorCode::corrupt,
                    who + ": its record contradicts itself; its owner should create it again");
    if (outcome != Outcome::done) return refuse(ErrorCode::busy, who + " keeps changing; try again");
    found.name = name;
    return remember(std::move(found));
  }

  std::vector<SharedTensor> list() override;

  Status remove(const SharedTensor& tensor, uint64_t wait_ns) override {
    TERRACE_RETURN_IF_ERROR(known_here(tensor));
    // One that another holder owns has it removed by that.
    if (const Status part = part_of(tensor); !part.ok() && part.error().code != ErrorCode::busy)
      return part.error();
    if (own() == nullptr || tensor.part_ != own()->part())
      TERRACE_RETURN_IF_ERROR(have_removed(tensor, wait_ns));
    else
      TERRACE_RETURN_IF_ERROR(remove_own(tensor, wait_ns));
    WriterLock lock(index_mutex_);
    index_.erase(coherence::name_hash(tensor.name()));
    return {};
  }

  uint64_t tend() override { return own() == nullptr || forked() ? 0 : own()->remove_what_peers_ask(); }

  Result<uint64_t> version(const SharedTensor& tensor) override {
    TERRACE_RETURN_IF_ERROR(known_here(tensor));
    const coherence::Look seen = core_.reader().look(*tensor.located_);
    if (seen.outcome != Outcome::done) return error_of(seen.outcome, tensor, writer_died(tensor, seen.outcome));
    return seen.version;
  }

  Result<uint64_t> read(const SharedTensor& tensor, std::span<std::byte> into, uint64_t known,
                        uint64_t wait_ns) override {
    TERRACE_RETURN_IF_ERROR(known_here(tensor));
    if (into.size() != tensor.bytes())
      return refuse(ErrorCode::invalid_argument, "tensor " + quoted_name(tensor.name()) + " has " +
                                                     std::to_string(tensor.bytes()) + " bytes, not " +
                                                     std::to_string(into.size()));
    uint64_t version = 0;
    const Outcome outcome = patiently(
        tensor, wait_ns, [&] { return core_.reader().read(*tensor.located_, into, known, &version); });
    if (outcome == Outcome::done || outcome == Outcome::current) return version;
    return error_of(outcome, tensor, writer_died(tensor, outcome));
  }

  Result<TensorPin> pin(const SharedTensor& tensor, uint64_t wait_ns) override {
    TERRACE_RETURN_IF_ERROR(known_here(tensor));
    if (own() == nullptr && options_.ownership == nullptr) return read_only(tensor);
    if (forked()) return in_child();
    if (own() == nullptr) TERRACE_RETURN_IF_ERROR(take_seat(tensor));
    TensorPin pin;
    const Outcome outcome = patiently(
        tensor, wait_ns, [&] { return core_.pin(*tensor.located_, &pin.pin_, &pin.version_, &pin.bytes_); });
    if (outcome == Outcome::done) {
      pin.space_ = this;
      return pin;
    }
    return error_of(outcome, tensor, writer_died(tensor, outcome));
  }

  Result<uint64_t> wait_for_version(const SharedTensor& tensor, uint64_t version, uint64_t wait_ns) override {
    TERRACE_RETURN_IF_ERROR(known_here(tensor));
    coherence::Look seen;
    const Outcome outcome = patiently(tensor, wait_ns, [&] {
      seen = core_.reader().look(*tensor.located_);
      return seen.outcome == Outcome::done && seen.version < version ? Outcome::blank : seen.outcome;
    });
    if (outcome == Outcome::done) return seen.version;
    return error_of(outcome, tensor, writer_died(tensor, outcome));
  }

  Result<TensorWrite> write(const SharedTensor& tensor, uint64_t wait_ns) override {
    TERRACE_RETURN_IF_ERROR(writable(tensor));
    tend_now_and_then();
    auto state = std::make_unique<TensorWrite::State>();
    state->space = this;
    Waiting waiting(wait_ns);
    Outcome outcome = own()->begin_write(*tensor.located_, &state->ticket);
    while (outcome != Outcome::done && waiting.again(outcome)) {
      Memory().pause();
      outcome = own()->begin_write(*tensor.located_, &state->ticket);
    }
    if (outcome != Outcome::done) return error_of(outcome, tensor, false);
    return TensorWrite(std::move(state));
  }

  Result<uint64_t> publish(const SharedTensor& tensor, std::span<const std::byte> bytes,
                           uint64_t wait_ns) override {
    if (bytes.size() != tensor.bytes())
      return refuse(ErrorCode::invalid_argument, "tensor " + quoted_name(tensor.name()) + " has " +
                                                     std::to_string(tensor.bytes()) + " bytes, not " +
                                                     std::to_string(bytes.size()));
    TERRACE_ASSIGN_OR_RETURN(TensorWrite writing, write(tensor, wait_ns));
    Memory().write(writing.bytes().data(), bytes.data(), bytes.size());
    return writing.publish();
  }

  uint64_t finish_write(const coherence::Ticket& ticket) override {
    if (forked()) return 0;
    own()->publish(ticket, core_.geometry().checksums() ? core_.reader().in_place_checksum(ticket.bytes) : 0);
    return ticket.version;
  }
  void fill_write(const coherence::Ticket& ticket, std::span<const std::byte> bytes) override {
    if (!forked()) Memory().write(ticket.bytes.data(), bytes.data(), bytes.size());
  }
  void abort_write(const coherence::Ticket& ticket) override {
    if (!forked()) own()->abort(ticket, true);
  }

 protected:
  bool is_current_slowly(const SharedTensor& tensor, uint64_t version) override {
    return known_here(tensor).ok() && core_.reader().is_current(*tensor.located_, version);
  }
  void unpin(uint32_t pin) override {
    if (!forked()) core_.pins().drop(pin);
  }

 private:
  static Error refuse(ErrorCode code, std::string detail) {
    return Error{.code = code, .where = "TensorSpace", .detail = std::move(detail)};
  }

  // acquire: pairs with claim_part()
  coherence::OwnedPart<Memory>* own() const { return own_.load(std::memory_order_acquire); }
  coherence::FreeSpace free_space() const {
    if (forked()) return {};
    if (own() != nullptr) return own()->free_space();
    return claims_later() ? unclaimed_space() : coherence::FreeSpace();
  }
  // What no part has: for who has none yet.
  coherence::FreeSpace unclaimed_space() const {
    const coherence::Geometry& geometry = core_.geometry();
    Memory memory;
    memory.invalidate(geometry.claim(0, 0), uint64_t{geometry.chunks} * sizeof(uint64_t),
                      coherence::Step::none);
    memory.load_barrier(coherence::Step::none);
    coherence::ChunkClaims<Memory> claims(memory, geometry, 0, claims_.dead_check());
    return coherence::with_chunks({}, claims.look_for_free(), geometry);
  }

  static Error no_part(ErrorCode code, const std::string& why) {
    return Error{.code = code, .where = "TensorSpace::attach", .detail = "tensor space: " + why};
  }

  // Whether a part is claimed by the first call that needs one.
  bool claims_later() const {
    return options_.ownership != nullptr && options_.own_a_part && options_.claim == PartClaim::when_needed;
  }

  // The first of them that can be had is this holder's. Errors: as TensorSpace::attach.
  Status claim_part(const std::vector<uint32_t>& parts) {
    const Result<coherence::Claimed> claimed = claims_.claim_first(parts);
    if (claimed.ok()) {
      core_.become_owner(claimed->holder, claimed->epoch, options_.host);
      own_.store(core_.own(), std::memory_order_release);  // release: pairs with own()
      return {};
    }
    if (claimed.error().code != ErrorCode::busy) return claimed.error();
    const std::string& why = claimed.error().detail;
    if (options_.part)
      return no_part(ErrorCode::busy, "part " + std::to_string(*options_.part) + " cannot be had" + why +
                                          "; let any part do, or attach without a part to read only");
    return no_part(ErrorCode::busy, "none of " + std::to_string(core_.geometry().parts) + " parts can be had" +
                                        why +
                                        "; attach without a part to read only, or have more parts: format "
                                        "it anew, or end another holder");
  }

  // A part for a new tensor, where none is owned yet; not for a name that there is: who only makes sure that it
  // is there takes nothing.
  Status part_for_new(std::string_view name) {
    if (own() != nullptr || !claims_later()) return {};
    Located found;
    if (core_.find(name, &found) == Outcome::done)
      return refuse(ErrorCode::already_exists, "tensor " + quoted_name(name) + " exists: open it");
    const MutexLock lock(holder_mutex_);
    return own() != nullptr ? Status{} : claim_part(claims_.to_try(0, core_.geometry().parts));
  }

  // The part that the tensor is in, where none is owned yet. Errors: `busy`: its owner lives.
  Status part_of(const SharedTensor& tensor) {
    if (own() != nullptr || !claims_later()) return {};
    if (forked()) return in_child();
    if (core_.reader().look(*tensor.located_).outcome == Outcome::gone)
      return error_of(Outcome::gone, tensor, false);
    const MutexLock lock(holder_mutex_);
    return own() != nullptr ? Status{} : claim_part({tensor.part_});
  }

  // Errors: as pin().
  Status take_seat(const SharedTensor& tensor) {
    if (seated_.load(std::memory_order_acquire)) return {};  // acquire: pairs with the store below
    const MutexLock lock(holder_mutex_);
    if (core_.seat() != nullptr || own() != nullptr) return {};
    const coherence::Geometry& geometry = core_.geometry();
    if (geometry.seats == 0 && !claims_later()) return without_seats(tensor);
    const Result<coherence::Claimed> claimed =
        claims_.claim_first(claims_.to_try(geometry.parts, geometry.holders()));
    if (claimed.ok()) {
      core_.take_seat(claimed->holder, claimed->epoch, options_.host);
      seated_.store(true, std::memory_order_release);  // release: pairs with seat() and the load above
      return {};
    }
    if (claimed.error().code != ErrorCode::busy) return claimed.error();
    // Rather a part than nothing, but none that a restarted writer will ask for.
    if (claims_later() && claim_part(claims_.spare_parts()).ok()) return {};
    return refuse(ErrorCode::busy, "tensor " + quoted_name(tensor.name()) + ": none of " +
                                       std::to_string(geometry.seats) +
                                       " seats for holders without a part can be had" + claimed.error().detail +
                                       "; read by copy, end another such holder, or format with more seats");
  }

  bool forked() const { return ::getpid() != process_; }
  static Error in_child() {
    return refuse(ErrorCode::unavailable,
                  "the space belongs to the process that forked this one; map the memory and attach again");
  }

  // A tensor that was found in this memory: its numbers were checked against this geometry.
  Status known_here(const SharedTensor& tensor) const {
    const coherence::Geometry& geometry = core_.geometry();
    if (tensor.located_ != nullptr && tensor.base_ == geometry.base && tensor.located_->part < geometry.parts &&
        tensor.located_->record < geometry.records) [[likely]]
      return {};
    return refuse(ErrorCode::invalid_argument, tensor.located_ == nullptr
                                                   ? std::string("a tensor that was neither created nor opened")
                                                   : "tensor " + quoted_name(tensor.name()) +
                                                         " was found in other memory than this space's");
  }

  Status remove_own(const SharedTensor& tensor, uint64_t wait_ns) {
    TERRACE_RETURN_IF_ERROR(writable(tensor));
    tend_now_and_then();
    Waiting waiting(wait_ns);
    Outcome outcome = own()->remove(*tensor.located_);
    while (outcome != Outcome::done && waiting.again(outcome)) {
      Memory().pause();
      outcome = own()->remove(*tensor.located_);
    }
    return outcome == Outcome::done ? Status{} : Status(error_of(outcome, tensor, false));
  }

  // Asks the owner of another part, and waits until it has done it. What was asked is taken back at the end of
  // the wait; an owner that read it by then removes the tensor all the same.
  Status have_removed(const SharedTensor& tensor, uint64_t wait_ns) {
    if (forked()) return in_child();
    if (own() == nullptr && options_.ownership == nullptr) return read_only(tensor);
    if ((tensor.flags() & TensorFlags::peers_may_remove) == 0) return foreign(tensor);
    if (own() == nullptr) TERRACE_RETURN_IF_ERROR(take_seat(tensor));
    const Located& located = *tensor.located_;
    if (core_.reader().look(located).outcome == Outcome::gone) return error_of(Outcome::gone, tensor, false);
    const std::optional<uint32_t> word =
        core_.pins().hold(coherence::removal_word(located.part, located.record, located.incarnation));
    if (!word) return error_of(Outcome::full, tensor, false);
    Memory().full_barrier(coherence::Step::none);
    Waiting waiting(wait_ns);
    bool gone = false, dead = false;
    do {
      Memory().pause();
      gone = core_.reader().look(located).outcome == Outcome::gone;
      if (!gone && waiting.long_wait())
        dead = claims_.dead_check()(located.part, claims_.last_owner(located.part).epoch);
    } while (!gone && !dead && waiting.again(Outcome::pinned));
    core_.pins().drop(*word);
    return gone ? Status{} : Status(not_removed(tensor, dead));
  }

  // Other holders ask rarely, and wait: once a millisecond is often enough.
  void tend_now_and_then() {
    constexpr uint64_t pause_ns = 1'000'000;
    const uint64_t now_ns = clock_.now_ns();
    uint64_t due_ns = tend_at_ns_.load(std::memory_order_relaxed);
    if (now_ns < due_ns || !tend_at_ns_.compare_exchange_strong(due_ns, now_ns + pause_ns)) return;
    own()->remove_what_peers_ask();
  }

  Status writable(const SharedTensor& tensor) {
    TERRACE_RETURN_IF_ERROR(known_here(tensor));
    if (forked()) return in_child();
    if (const Status part = part_of(tensor); !part.ok())
      return part.error().code == ErrorCode::busy ? foreign(tensor) : part.error();
    if (own() == nullptr) return read_only(tensor);
    if (tensor.part_ != own()->part()) return foreign(tensor);
    return {};
  }

  // Nothing is worth waiting for once the writer of the only slot is dead.
  bool writer_died(const SharedTensor& tensor, Outcome outcome) {
    if (outcome != Outcome::writing) return false;
    Memory memory;
    const uint64_t* const owner_epoch = &core_.reader().slots(*tensor.located_)->owner_epoch;
    const uint64_t writer = memory.load(owner_epoch);
    if (!claims_.dead_check()(tensor.part_, writer)) return false;
    // It may have published just before: what is there after its death is the answer. A mark under another
    // epoch is the next owner's, who lives.
    return core_.reader().look(*tensor.located_).outcome == Outcome::writing &&
           memory.load(owner_epoch) == writer;
  }

  template <typename Attempt>
  Outcome patiently(const SharedTensor& tensor, uint64_t wait_ns, Attempt attempt) {
    Waiting waiting(wait_ns);
    for (;;) {
      const Outcome outcome = attempt();
      if (!waiting.again(outcome) || (waiting.long_wait() && writer_died(tensor, outcome))) return outcome;
      Memory().pause();
    }
  }

  SharedTensor tensor_of(FoundTensor found) const;
  SharedTensor remember(FoundTensor found);
  std::optional<SharedTensor> recall(std::string_view name);

  // Half a kilobyte each; not many more than there can be tensors.
  size_t index_names_max() const {
    return std::min<size_t>(1u << 20, size_t{2} * core_.geometry().parts * core_.geometry().records);
  }

  const AttachOptions options_;
  const coherence::HolderClaims<Memory> claims_;
  const pid_t process_ = ::getpid();
  Mutex holder_mutex_;  // while a part or a seat is taken
  std::atomic<bool> seated_ = false;
  std::atomic<coherence::OwnedPart<Memory>*> own_ = nullptr;  // core_'s, once it is taken over
  SystemClock clock_;
  std::atomic<uint64_t> tend_at_ns_ = 0;
  mutable coherence::SpaceCore<Memory> core_;
  SharedMutex index_mutex_;
  std::unordered_map<uint64_t, SharedTensor> index_
      TERRACE_GUARDED_BY(index_mutex_);  // by hash; of two names with one, the last
};

template <typename Memory>
std::vector<SharedTensor> SpaceOf<Memory>::list() {
  std::vector<SharedTensor> tensors;
  const coherence::Geometry& geometry = core_.geometry();
  std::vector<char> name(layout::space_name_bytes_max);
  for (uint32_t part = 0; part < geometry.parts; ++part)
    for (uint32_t record = 0; record < geometry.records; ++record) {
      FoundTensor found;
      uint64_t word = 0;
      if (core_.reader().describe(part, record, {}, &found, &word, name) != Outcome::done) continue;
      if (coherence::has(word, layout::word_tentative)) continue;
      found.name.assign(name.data(), found.shape.name_bytes);
      tensors.push_back(tensor_of(std::move(found)));
    }
  return tensors;
}

template <typename Memory>
SharedTensor SpaceOf<Memory>::tensor_of(FoundTensor found) const {
  const auto kept = std::make_shared<const FoundTensor>(std::move(found));
  const layout::TensorShape& shape = kept->shape;
  SharedTensor tensor;
  if (Memory::coherent) tensor.coherent_word_ = &core_.reader().slots(*kept)->word;
  tensor.located_ = kept;
  tensor.base_ = core_.geometry().base;
  tensor.name_ = kept->name;
  const Result<Shape> dimensions = Shape::from(std::span(shape.shape).first(shape.rank));
  if (dimensions.ok()) tensor.shape_ = *dimensions;
  std::copy(std::begin(shape.strides), std::end(shape.strides), tensor.strides_.begin());
  tensor.bytes_ = shape.data_bytes;
  tensor.part_ = kept->part;
  tensor.dtype_ = dtype_from_number(shape.dtype).value_or(DType::u8);
  tensor.hint_ = hint_from_number(shape.hint).value_or(TensorHint::none);
  tensor.flags_ = shape.flags;
  tensor.double_buffered_ = shape.slot_count == 2;
  return tensor;
}

template <typename Memory>
SharedTensor SpaceOf<Memory>::remember(FoundTensor found) {
  SharedTensor tensor = tensor_of(std::move(found));
  WriterLock lock(index_mutex_);
  if (index_.size() >= index_names_max()) index_.clear();
  index_.insert_or_assign(coherence::name_hash(tensor.name()), tensor);
  return tensor;
}

// What was found before is right as long as its record still has the same incarnation.
template <typename Memory>
std::optional<SharedTensor> SpaceOf<Memory>::recall(std::string_view name) {
  ReaderLock lock(index_mutex_);
  const auto known = index_.find(coherence::name_hash(name));
  if (known == index_.end() || known->second.name() != name) return std::nullopt;
  if (core_.reader().look(*known->second.located_).outcome == Outcome::gone) return std::nullopt;
  return known->second;
}

}  // namespace terrace
