#include "tests/coherence/actor.h"

#include <algorithm>
#include <cstring>

namespace terrace::coherence {

namespace {

constexpr uint64_t names = 10;

std::string name_of(uint64_t index) {
  std::string name = "tensor-" + std::to_string(index);
  if (index % 3 == 0) name.append(80, 'x');  // a name of two lines
  return name;
}

}  // namespace

Actor::Actor(World& world, size_t index, uint32_t host)
    : world_(world),
      prng_(world.prng_.next()),
      program_{.host = host, .turn = [&world, index] { world.turn(index); }},
      space_(EmulatedHost(world.fabric_, program_), world.geometry_,
             [&world](uint32_t part, uint64_t epoch) { return world.is_dead(part, epoch); }),
      fiber_(std::make_unique<Fiber>([this] { live(); })) {}

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
  at = {.ownership = World::Ownership::owned, .repairing = true, .epoch = at.epoch + 1, .host = program_.host};
  part_ = part;
  space_.become_owner(part, at.epoch, program_.host);
  compare_after_take_over(part);
  at.repairing = false;
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
  while (!views_.empty()) drop_view();
  const uint32_t part = *part_;
  space_.own()->release();
  space_.forget_owner();
  handles_.clear();
  part_.reset();
  world_.parts_[part].ownership = World::Ownership::free;
  while (!claim()) program_.turn();
}

void Actor::operate() {
  ++world_.counts_.operations;
  program_.late_reads.clear();  // of a buffer that is gone, when a barrier is left out
  const uint64_t draw = prng_.below(100);
  if (!views_.empty() && prng_.chance(1, 2)) use_view(views_[prng_.below(views_.size())]);
  if (draw < 7)
    create();
  else if (draw < 10)
    remove();
  else if (draw < 35)
    write();
  else if (draw < 50)
    find();
  else if (draw < 75)
    read();
  else if (draw < 82)
    look();
  else if (draw < 92)
    pin();
  else if (draw < 99)
    drop_view();
  else if (prng_.chance(1, 20))
    leave();
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

void Actor::create() {
  const std::string name = name_of(prng_.below(names));
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
  const Outcome outcome = space_.create(name, *shape, &handle.tensor, [&](const Located& tensor) {
    world_.truths_[identity_of(tensor)] = handle.truth;
  });
  if (outcome != Outcome::done) {
    handle.truth->removed = world_.now_;
    ++world_.counts_.refused;
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
  const Outcome outcome = space_.own()->remove(tensor);
  truth->unsettled = false;
  ++truth->activity;
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

void Actor::write() {
  Handle* const found = own_handle();
  if (found == nullptr || found->truth->removed != 0) return;
  const Handle handle = *found;
  Truth& truth = *handle.truth;
  const uint64_t floor = truth.floor;
  if (truth.slots == 1) truth.floor = 0;  // from now on there may be nothing to read
  ++truth.activity;
  Ticket ticket;
  const Outcome outcome = space_.own()->begin_write(handle.tensor, &ticket);
  ++truth.activity;
  if (outcome != Outcome::done) {
    truth.floor = floor;
    if (outcome != Outcome::pinned) fail("lost", handle, "its owner cannot write it");
    ++world_.counts_.refused;
    return;
  }
  const uint64_t content = world_.next_content_++ << 20;
  truth.remember(ticket.version, content);
  const EmulatedHost memory(world_.fabric_, program_);
  std::vector<uint64_t> words(truth.words);
  for (uint64_t index = 0; index < truth.words; ++index) words[index] = Truth::word(content, index);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(words));
  const bool give_up = prng_.chance(1, 16);
  memory.write(ticket.bytes.data(), bytes.data(), give_up ? bytes.size() / 2 : bytes.size());
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
  space_.own()->publish(ticket, crc32c(bytes));
  ++truth.activity;
  truth.floor = ticket.version;
  ++world_.counts_.publications;
}

void Actor::find() {
  const std::string name = name_of(prng_.below(names));
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

void Actor::drop_view() {
  if (views_.empty()) return;
  space_.own()->pins().drop(views_.back().pin);
  views_.pop_back();
}

}  // namespace terrace::coherence
