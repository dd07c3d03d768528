// SPDX-License-Identifier: Apache-2.0
#include "tests/coherence/actor.h"

#include <algorithm>
#include <cstring>

namespace terrace::coherence {

std::string Actor::some_name() {
  const uint64_t index = prng_.below(world_.temper_.names);
  std::string name = "tensor-" + std::to_string(index);
  if (index % 3 == 0) name.append(80, 'x');  // a name of two lines
  return name;
}

Actor::Actor(World& world, size_t index, uint32_t host)
    : world_(world),
      prng_(world.prng_.next()),
      program_{.host = host, .turn = [&world, index] { world.turn(index); }},
      space_(EmulatedHost(world.fabric_, program_), world.geometry_,
             [&world](uint32_t part, uint64_t epoch) { return world.is_dead(part, epoch); }),
      fiber_(std::make_unique<Fiber>([this] { live(); })) {}

// For a while; who only looks mostly until a part is taken over: that is when a slow reader is in most danger.
bool Actor::begins_to_stall() {
  if (stalls_in_ == 0 || --stalls_in_ != 0) return false;
  const bool until_take_over = only_looks_ && prng_.chance(3, 4);
  stalled_until_ = world_.now_ + (until_take_over ? 20'000 : uint64_t{16} << prng_.below(8));
  stalled_for_ = until_take_over ? std::optional(world_.counts_.take_overs) : std::nullopt;
  return true;
}

bool Actor::stands_still() const {
  return world_.now_ < stalled_until_ && (!stalled_for_ || world_.counts_.take_overs == *stalled_for_);
}

void Actor::forget_pins() {
  for (const View& view : views_) view.handle.truth->unpin(view.since);
}

void Actor::live() {
  try {
    while (!claim()) program_.turn();
    while (!program_.killed) operate();
  } catch (const Killed&) {
  }
}

bool Actor::claim() {
  const auto part = static_cast<uint32_t>(prng_.below(world_.parts_.size()));
  World::Part& at = world_.parts_[part];
  if (program_.killed) throw Killed();
  if (at.ownership != World::Ownership::free) return false;
  ++world_.ownership_changes_;
  at = {.ownership = World::Ownership::owned, .repairing = true, .epoch = at.epoch + 1, .host = program_.host};
  part_ = part;
  if (part < world_.geometry_.parts) {
    space_.become_owner(part, at.epoch, program_.host);
    compare_after_take_over(part);
  } else {
    space_.take_seat(part, at.epoch, program_.host);
  }
  at.repairing = false;
  ++world_.ownership_changes_;
  ++world_.counts_.take_overs;
  return true;
}

// What the last owner had under way is decided now: a removal happened or did not, a version was published or
// not.
void Actor::compare_after_take_over(uint32_t part) {
  Reader<EmulatedHost>& reader = space_.reader();
  std::vector<std::pair<Identity, std::shared_ptr<Truth>>> mine;
  for (const auto& entry : world_.truths_)
    if (std::get<0>(entry.first) == part && entry.second->removed == 0) mine.push_back(entry);
  for (const auto& [identity, truth] : mine) {
    Located tensor{.part = part, .record = std::get<1>(identity), .incarnation = std::get<2>(identity)};
    tensor.shape.slot_count = truth->slots;
    const Look seen = reader.look(tensor);
    ++truth->activity;
    const Handle handle{tensor, truth};
    if (seen.outcome == Outcome::gone) {
      if (truth->confirmed != 0 && truth->removing == 0) fail("lost", handle, "gone after a take-over");
      truth->removed = world_.now_;
      continue;
    }
    truth->removing = 0;
    truth->unsettled = false;
    truth->waiting = false;
    if (truth->confirmed == 0) {
      truth->confirmed = world_.now_;  // its creator died just before create() returned
      check_unique(handle);
    }
    if (seen.outcome == Outcome::done) {
      if (seen.version < truth->floor) fail("lost", handle, "an older version after a take-over");
      const uint64_t content = truth->content(seen.version);
      if (content == 0) fail("torn", handle, "a version after a take-over that nobody wrote");
      truth->remember(seen.version, content);
      truth->floor = seen.version;
    } else if (truth->floor != 0) {
      fail("lost", handle, "no content after a take-over");
    }
  }
}

void Actor::leave() {
  while (!writings_.empty()) go_on_writing();
  while (!views_.empty()) drop_view();
  const uint32_t part = *part_;
  if (space_.own() != nullptr)
    space_.own()->release();
  else
    space_.seat()->release();
  space_.forget_owner();
  handles_.clear();
  part_.reset();
  world_.parts_[part].ownership = World::Ownership::free;
  while (!claim()) program_.turn();
}

void Actor::operate() {
  ++world_.counts_.operations;
  program_.late_reads.clear();
  const auto some_accesses = [&] {
    return 1 + static_cast<uint32_t>(prng_.below(uint64_t{4} << prng_.below(5)));
  };
  stalls_in_ = prng_.below(256) < world_.temper_.stalls_of_256 ? 1 + static_cast<uint32_t>(prng_.below(24)) : 0;
  if (!writings_.empty() && prng_.chance(1, 3)) go_on_writing();
  if (!views_.empty() && prng_.chance(1, 2)) use_view(views_[prng_.below(views_.size())]);
  if (prng_.below(1024) >= world_.temper_.doomed_of_1024) {
    operate_at_random();
    return;
  }
  // What leaves most behind: a write.
  dies_in_ = some_accesses();
  for (int tries = 0; tries < 8 && prng_.chance(7, 8); ++tries) write();
  for (;;) operate_at_random();
}

void Actor::operate_at_random() {
  program_.late_reads.clear();  // of a buffer that is gone, when a barrier is left out
  const Habits& habits = world_.temper_.habits;
  const std::pair<uint32_t, void (Actor::*)()> choices[] = {
      {habits.create, &Actor::create}, {habits.remove, &Actor::remove},      {habits.write, &Actor::write},
      {habits.find, &Actor::find},     {habits.read, &Actor::read},          {habits.look, &Actor::look},
      {habits.pin, &Actor::pin},       {habits.drop_view, &Actor::drop_view}};
  uint32_t sum = habits.leave;
  for (const auto& [weight, action] : choices) sum += weight;
  uint64_t draw = prng_.below(sum);
  for (const auto& [weight, action] : choices) {
    if (draw < weight) {
      only_looks_ =
          action == &Actor::find || action == &Actor::read || action == &Actor::look || action == &Actor::pin;
      (this->*action)();
      only_looks_ = false;
      return;
    }
    draw -= weight;
  }
  if (prng_.chance(1, 20)) leave();
}

Actor::Handle* Actor::some_handle() {
  return handles_.empty() ? nullptr : &handles_[prng_.below(handles_.size())];
}

Actor::Handle* Actor::own_handle() {
  for (int tries = 0; tries < 8; ++tries) {
    Handle* const handle = some_handle();
    if (handle != nullptr && handle->tensor.part == *part_) return handle;
  }
  return nullptr;
}

Expected Actor::expect(const Handle& handle) const {
  return {world_.now_, handle.truth->floor, handle.truth->activity};
}

void Actor::fail(const std::string& kind, const Handle& handle, const std::string& what) {
  const auto [part, record, incarnation] = identity_of(handle.tensor);
  world_.fail(kind + ": " + handle.truth->name + " (part " + std::to_string(part) + ", record " +
              std::to_string(record) + ", incarnation " + std::to_string(incarnation) + ", " +
              std::to_string(handle.truth->slots) + " slots): " + what);
}

// What may be said instead of an answer, and what may not.
void Actor::check_outcome(const Handle& handle, const Expected& expected, Outcome outcome, const char* what) {
  const Truth& truth = *handle.truth;
  // Whoever died may still be at it until it is fenced.
  const bool quiet = truth.activity == expected.activity && !truth.unsettled &&
                     world_.parts_[handle.tensor.part].ownership != World::Ownership::dying &&
                     !world_.parts_[handle.tensor.part].repairing;
  if (outcome == Outcome::corrupt) fail("corrupt", handle, what);
  if (outcome == Outcome::gone && truth.removing == 0 && truth.removed == 0) fail("lost", handle, what);
  // An only slot may have been given up, and written again, meanwhile.
  if (outcome == Outcome::blank && expected.floor != 0 && (truth.slots == 2 || quiet))
    fail("lost", handle, what);
  // Who waits for a reader in place, and may die at it, does not keep others from reading.
  if (truth.slots == 1 && outcome == Outcome::writing && truth.waiting && truth.owner_began < expected.begin)
    fail("blocked", handle, std::string(what) + ": its owner waits for a reader, and marked it");
  if (truth.slots == 2 && quiet && (outcome == Outcome::writing || outcome == Outcome::raced))
    fail("blocked", handle, std::string(what) + ": outcome " + std::to_string(static_cast<int>(outcome)));
}

void Actor::check_content(const Handle& handle, uint64_t version, uint64_t content,
                          std::span<const std::byte> bytes, const char* what) {
  if (content == 0) {
    fail("torn", handle, std::string(what) + ": version " + std::to_string(version) + " was never written");
    return;
  }
  for (uint64_t index = 0; index < bytes.size() / 8; ++index) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + index * 8, 8);
    if (word == Truth::word(content, index)) continue;
    std::string known;
    for (const auto& [each, made_of] : handle.truth->contents)
      if (Truth::word(made_of, index) == word) known = ": that of version " + std::to_string(each);
    fail("torn", handle,
         std::string(what) + ": version " + std::to_string(version) + ", word " + std::to_string(index) +
             " is another's" + known + "; published " + std::to_string(handle.truth->floor));
    return;
  }
}

void Actor::find() {
  const std::string name = some_name();
  const uint64_t begin = world_.now_;
  std::vector<std::pair<Identity, std::shared_ptr<Truth>>> there;
  for (const auto& entry : world_.truths_)
    if (entry.second->name == name && entry.second->confirmed != 0 && entry.second->removing == 0)
      there.push_back(entry);
  Handle handle;
  const Outcome outcome = space_.find(name, &handle.tensor);
  ++world_.counts_.finds;
  handle.truth = world_.truth_of(handle.tensor);
  if (outcome == Outcome::done) {
    if (handle.truth == nullptr || handle.truth->name != name) {
      world_.fail("torn: " + name + " was found where it is not");
    } else if (handle.truth->removed != 0 && handle.truth->removed < begin) {
      fail("stale", handle, "found after it was removed");
    } else {
      if (handles_.size() > 12) handles_.erase(handles_.begin());
      handles_.push_back(handle);
    }
    return;
  }
  if (outcome == Outcome::corrupt) world_.fail("corrupt: " + name);
  if (outcome != Outcome::gone) return;
  for (const auto& [identity, truth] : there)
    if (truth->removing == 0 && truth->removed == 0) {
      handle.tensor.part = std::get<0>(identity);
      handle.truth = truth;
      fail("lost", handle, "not found");
    }
}

void Actor::read() {
  Handle* const found = some_handle();
  if (found == nullptr) return;
  const Handle handle = *found;
  std::vector<std::byte> bytes(handle.tensor.shape.data_bytes);
  const Expected expected = expect(handle);
  uint64_t version = 0;
  const uint64_t known = prng_.chance(1, 2) ? handle.version : 0;
  const Outcome outcome = space_.reader().read(handle.tensor, bytes, known, &version);
  ++world_.counts_.reads;
  if (outcome != Outcome::done && outcome != Outcome::current) {
    check_outcome(handle, expected, outcome, "read");
    if (handle.truth->removed != 0)
      std::erase_if(handles_, [&](const Handle& other) {
        return identity_of(other.tensor) == identity_of(handle.tensor);
      });
    return;
  }
  if (handle.truth->removed != 0 && handle.truth->removed < expected.begin)
    fail("stale", handle, "read after it was removed");
  if (version < expected.floor)
    fail("stale", handle,
         "read version " + std::to_string(version) + ", published was " + std::to_string(expected.floor));
  if (outcome == Outcome::done) check_content(handle, version, handle.truth->content(version), bytes, "read");
  for (Handle& other : handles_)
    if (identity_of(other.tensor) == identity_of(handle.tensor)) other.version = version;
}

void Actor::look() {
  Handle* const found = some_handle();
  if (found == nullptr || found->version == 0) return;
  const Handle handle = *found;
  const Expected expected = expect(handle);
  ++world_.counts_.stale_free_looks;
  if (!space_.reader().is_current(handle.tensor, handle.version)) return;
  if (handle.version < expected.floor) fail("stale", handle, "an old local copy is said to be current");
  if (handle.truth->removed != 0 && handle.truth->removed < expected.begin)
    fail("stale", handle, "a removed tensor is said to be current");
}

void Actor::pin() {
  Handle* const found = some_handle();
  if (found == nullptr || views_.size() >= 3) return;
  View view{*found, 0, 0, {}, 0};
  const Expected expected = expect(view.handle);
  const Outcome outcome = space_.pin(view.handle.tensor, &view.pin, &view.version, &view.bytes);
  if (outcome != Outcome::done) {
    check_outcome(view.handle, expected, outcome, "pin");
    ++world_.counts_.refused;
    return;
  }
  ++world_.counts_.pins;
  if (view.version < expected.floor) fail("stale", view.handle, "pinned an old version");
  if (view.handle.truth->removed != 0) fail("stale", view.handle, "pinned after it was removed");
  view.content = view.handle.truth->content(view.version);
  view.since = world_.now_;
  view.handle.truth->pins.push_back(
      {.since = view.since, .slot = slot_of(view.version, view.handle.tensor.shape.slot_count)});
  views_.push_back(view);
  use_view(views_.back());
}

void Actor::use_view(View& view) {
  const EmulatedHost memory(world_.fabric_, program_);
  std::vector<std::byte> bytes(view.bytes.size());
  memory.read(bytes.data(), view.bytes.data(), bytes.size());
  memory.load_barrier(Step::none);
  check_content(view.handle, view.version, view.content, bytes, "read in place");
}

// What was loaded in place before drop() is of the pinned version, though nothing but drop() orders it.
void Actor::drop_view() {
  if (views_.empty()) return;
  const View view = views_.back();
  const EmulatedHost memory(world_.fabric_, program_);
  std::vector<std::byte> bytes(view.bytes.size());
  memory.read(bytes.data(), view.bytes.data(), bytes.size());
  view.handle.truth->unpin(view.since);
  space_.pins().drop(view.pin);
  views_.pop_back();
  if (prng_.chance(1, 4))
    for (uint64_t waited = prng_.below(64); waited > 0; --waited) memory.pause();
  check_content(view.handle, view.version, view.content, bytes, "read in place before the pin was dropped");
  program_.late_reads.clear();
}

}  // namespace terrace::coherence
