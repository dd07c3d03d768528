// SPDX-License-Identifier: Apache-2.0
// What an emulated program does with its own part: create, remove, write.
#include <algorithm>

#include "tests/coherence/actor.h"

namespace terrace::coherence {

void Actor::create() {
  const std::string name = some_name();
  const uint64_t words = 8 * prng_.between(1, 4);
  const uint32_t slots = prng_.chance(2, 3) ? 2 : 1;
  const Result<layout::TensorShape> shape =
      plan_shape(name, DType::u64, Shape{words}, TensorHint::none, 0, slots);
  Handle handle;
  handle.truth = std::make_shared<Truth>();
  handle.truth->name = name;
  handle.truth->slots = slots;
  handle.truth->words = words;
  // The truth is there before others can find the tensor.
  World::Creators& creators = world_.creators_[name];
  const bool settled = world_.owners_are_settled();
  const bool alone = creators.now++ == 0 && settled,
             alone_of_all = world_.creators_of_all_.now++ == 0 && settled;
  const uint64_t begun = ++creators.begun, begun_of_all = ++world_.creators_of_all_.begun;
  const uint64_t ownership_before = world_.ownership_changes_;
  struct Ended {  // also by death
    World::Creators &creators, &of_all;
    ~Ended() { --creators.now, --of_all.now; }
  } ended{creators, world_.creators_of_all_};
  const Outcome outcome = space_.create(name, *shape, &handle.tensor, [&](const Located& tensor) {
    world_.truths_[identity_of(tensor)] = handle.truth;
  });
  // Nobody else creates it, and no owner came or went meanwhile: it is free, or it is not.
  if (outcome == Outcome::raced && alone && creators.begun == begun &&
      world_.ownership_changes_ == ownership_before)
    world_.fail("blocked: " + name + " cannot be created, though nobody else creates it");
  if (outcome == Outcome::crowded && alone_of_all && world_.creators_of_all_.begun == begun_of_all &&
      world_.ownership_changes_ == ownership_before)
    world_.fail("blocked: no room for " + name + ", though nobody else creates anything");
  if (outcome != Outcome::done) {
    handle.truth->removed = world_.now_;
    ++world_.counts_.refused;
    if (outcome == Outcome::full || outcome == Outcome::crowded) ++world_.counts_.without_room;
    return;
  }
  ++world_.counts_.creations;
  handle.truth->confirmed = world_.now_;
  check_unique(handle);
  handles_.push_back(handle);
}

void Actor::check_unique(const Handle& handle) {
  for (const auto& [identity, other] : world_.truths_)
    if (other != handle.truth && other->name == handle.truth->name && other->confirmed != 0 &&
        other->removing == 0 && other->removed == 0)
      fail("twice", handle, "another live tensor has this name");
}

void Actor::remove() {
  Handle* const handle = own_handle();
  if (handle == nullptr || handle->truth->removed != 0) return;
  const std::shared_ptr<Truth> truth = handle->truth;
  const Located tensor = handle->tensor;
  truth->removing = world_.now_;
  ++truth->activity;
  truth->unsettled = true;
  truth->owner_began = world_.now_;
  const bool written = is_being_written(tensor);
  const Outcome outcome = space_.own()->remove(tensor);
  truth->unsettled = false;
  ++truth->activity;
  if (outcome == Outcome::done && written) fail("torn", *handle, "removed while another thread writes it");
  if (outcome == Outcome::done && truth->pinned_since_before(truth->owner_began, std::nullopt))
    fail("moved", *handle, "removed under a reader in place");
  if (outcome != Outcome::done) {
    truth->removing = 0;
    ++world_.counts_.refused;
    return;
  }
  truth->removed = world_.now_;
  ++world_.counts_.removals;
  world_.gone_.push_back(identity_of(tensor));
  if (world_.gone_.size() > 200) {
    world_.truths_.erase(world_.gone_.front());
    world_.gone_.pop_front();
  }
}

bool Actor::is_being_written(const Located& tensor) const {
  return std::any_of(writings_.begin(), writings_.end(), [&](const Writing& writing) {
    return identity_of(writing.handle.tensor) == identity_of(tensor);
  });
}

void Actor::write() {
  Handle* const found = own_handle();
  if (found == nullptr || found->truth->removed != 0) return;
  Writing writing{*found, {}};
  const Handle& handle = writing.handle;
  Truth& truth = *handle.truth;
  const uint64_t floor = truth.floor;
  const bool written = is_being_written(handle.tensor);
  truth.owner_began = world_.now_;
  truth.waiting = truth.pinned_since_before(world_.now_, std::nullopt);
  // From now on there may be nothing to read; but who waits for a reader has touched nothing.
  if (truth.slots == 1 && !truth.waiting) truth.floor = 0;
  ++truth.activity;
  const Outcome outcome = space_.own()->begin_write(handle.tensor, &writing.ticket);
  ++truth.activity;
  truth.waiting = false;
  if (outcome != Outcome::done) {
    if (!written) truth.floor = floor;
    if (outcome != (written ? Outcome::writing : Outcome::pinned) && !(written && outcome == Outcome::pinned))
      fail("lost", handle, "its owner cannot write it");
    ++world_.counts_.refused;
    return;
  }
  if (truth.slots == 1) truth.floor = 0;
  if (written) fail("torn", handle, "two threads write it at once");
  if (truth.pinned_since_before(truth.owner_began, slot_of(writing.ticket.version, truth.slots)))
    fail("moved", handle, "written under a reader in place");
  writing.content = world_.next_content_++ << 20;
  truth.remember(writing.ticket.version, writing.content);
  if (writings_.size() < 2 && prng_.below(8) < world_.temper_.open_writes_of_8) {
    ++world_.counts_.open_writes;
    writings_.push_back(writing);
  } else {
    end_write(writing);
  }
}

// The next bytes of a slot, a word after the other.
void Actor::write_some(Writing& writing, size_t bytes) {
  const EmulatedHost memory(world_.fabric_, program_);
  const size_t end = std::min(writing.written + bytes, writing.ticket.bytes.size());
  std::vector<uint64_t> words;
  for (uint64_t index = writing.written / 8; index < end / 8; ++index)
    words.push_back(Truth::word(writing.content, index));
  std::byte* const at = writing.ticket.bytes.data() + writing.written;
  writing.written = end;
  memory.write(at, words.data(), words.size() * 8);
}

void Actor::go_on_writing() {
  const size_t index = prng_.below(writings_.size());
  if (prng_.chance(2, 3)) {
    write_some(writings_[index], 64);
    return;
  }
  const Writing writing = writings_[index];
  writings_.erase(writings_.begin() + static_cast<std::ptrdiff_t>(index));
  end_write(writing);
}

void Actor::end_write(const Writing& begun) {
  Writing writing = begun;
  Truth& truth = *writing.handle.truth;
  const Ticket& ticket = writing.ticket;
  const bool give_up = prng_.chance(1, 16);
  write_some(writing, give_up ? ticket.bytes.size() / 2 : ticket.bytes.size());
  if (give_up) {
    const uint64_t before = version_of(ticket.before);
    if (const uint64_t kept = truth.content(before); truth.slots == 2 && kept != 0)
      truth.remember(before + 4, kept);
    truth.unsettled = true;
    space_.own()->abort(ticket, true);
    truth.unsettled = false;
    ++truth.activity;
    return;
  }
  std::vector<uint64_t> words(truth.words);
  for (uint64_t index = 0; index < truth.words; ++index) words[index] = Truth::word(writing.content, index);
  space_.own()->publish(ticket, crc32c(std::as_bytes(std::span(words))));
  ++truth.activity;
  truth.floor = ticket.version;
  ++world_.counts_.publications;
}

}  // namespace terrace::coherence
