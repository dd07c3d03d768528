// SPDX-License-Identifier: Apache-2.0
#include "tests/coherence/kv_world.h"

#include "core/base/check.h"

namespace terrace::coherence {
namespace {

constexpr uint32_t kv_parts = 4;
constexpr uint64_t kv_chunk_bytes = 512;

Geometry kv_geometry(std::span<std::byte> memory, bool checksums) {
  const auto header = plan_header(memory, {.parts = kv_parts,
                                           .records = 8,
                                           .pins = 8,
                                           .features = checksums ? layout::space_feature_checksums : 0,
                                           .mode = layout::SpaceMode::noncoherent,
                                           .chunk_bytes = kv_chunk_bytes,
                                           .content = SpaceContent::blocks});
  TERRACE_CHECK(header.ok(), "the emulated space has room");
  const auto geometry = check_header(*header, memory, SpaceContent::blocks);
  TERRACE_CHECK(geometry.ok(), "what was planned is accepted");
  return *geometry;
}

std::string kv_key(uint32_t key) {
  return "key-" + std::to_string(key);
}

kv::BlockKey kv_hash(uint32_t key) {
  return kv::key_of(kv::namespace_hash(""), kv_key(key));
}

}  // namespace

void KvWorldCounts::add(const KvWorldCounts& more) {
  operations += more.operations;
  reads += more.reads;
  puts += more.puts;
  pins += more.pins;
  removals += more.removals;
  deaths += more.deaths;
  power_cuts += more.power_cuts;
  take_overs += more.take_overs;
  without_room += more.without_room;
  copies += more.copies;
  compared += more.compared;
  compared_in_place += more.compared_in_place;
}

KvWorld::KvWorld(uint64_t seed, Step left_out)
    : seed_(seed),
      prng_(seed),
      hosts_(static_cast<uint32_t>(prng_.between(1, 3))),
      keys_(static_cast<uint32_t>(prng_.between(1, 8))),
      views_most_(prng_.below(4)),
      at_once_(seed % 3 == 2),
      copies_(seed % 4 == 1),
      fabric_(4096 + kv_parts * 4096 + 4096 * prng_.between(1, 2), hosts_, seed ^ 0x5eed),
      parts_(kv_parts) {
  geometry_ = kv_geometry(fabric_.memory(), prng_.chance(1, 4));
  fabric_.leave_out(left_out);
  actors_.resize(prng_.between(2, 4));
  for (size_t index = 0; index < actors_.size(); ++index) start(index);
}

KvWorld::~KvWorld() {
  for (const auto& actor : actors_) {
    actor->program().killed = true;
    while (!actor->fiber().finished()) actor->fiber().resume();
  }
}

void KvWorld::start(size_t index) {
  actors_[index] = std::make_unique<KvActor>(*this, index, static_cast<uint32_t>(index % hosts_));
}

void KvWorld::fail(const std::string& what) {
  if (failure_.empty())
    failure_ = what + " (seed " + std::to_string(seed_) + ", after " + std::to_string(counts_.operations) +
               " operations)";
}

void KvWorld::turn(size_t index) {
  ++now_;
  if ((prng_.next() & 63) < turns_of_64_) actors_[index]->fiber().pause();
}

void KvWorld::run(uint64_t operations) {
  constexpr uint32_t weathers[] = {1, 4, 16, 48};
  while (counts_.operations < operations && failure_.empty()) {
    const uint64_t draw = prng_.next();
    if ((draw >> 32 & 511) == 0) {
      fabric_.set_wildness(weathers[prng_.below(4)]);
      turns_of_64_ = weathers[prng_.below(4)];
      if (prng_.chance(1, 2)) kill(prng_.below(actors_.size()));
      if (prng_.chance(1, 16)) cut_power(static_cast<uint32_t>(prng_.below(hosts_)));
    }
    fence_the_dead();
    const size_t index = static_cast<size_t>(draw % actors_.size());
    if (actors_[index]->fiber().finished())
      start(index);
    else
      actors_[index]->fiber().resume();
  }
}

void KvWorld::kill(size_t index) {
  KvActor& actor = *actors_[index];
  if (actor.fiber().finished() || actor.program().killed) return;
  ++counts_.deaths;
  actor.program().killed = true;
  while (!actor.fiber().finished()) actor.fiber().resume();
  if (!actor.part()) return;
  parts_[*actor.part()].ownership = at_once_ ? Ownership::free : Ownership::dying;
  parts_[*actor.part()].fenced_at = now_ + prng_.below(2000);
}

void KvWorld::cut_power(uint32_t host) {
  ++counts_.power_cuts;
  for (size_t index = 0; index < actors_.size(); ++index)
    if (actors_[index]->program().host == host) kill(index);
  fabric_.lose_power(host);
}

// A dead holder's lines leave its host's caches before anybody hears that it is dead.
void KvWorld::fence_the_dead() {
  for (uint32_t part = 0; part < kv_parts; ++part) {
    Part& at = parts_[part];
    if (at.ownership != Ownership::dying || at.fenced_at > now_) continue;
    fabric_.fence(at.host, geometry_.owner(part), geometry_.part_bytes);
    for (uint32_t chunk = 0; chunk < geometry_.chunks; ++chunk) {
      uint64_t claim = 0;
      std::memcpy(&claim, geometry_.claim(part, chunk), sizeof claim);
      if (claim != static_cast<uint64_t>(layout::ChunkClaim::none))
        fabric_.fence(at.host, geometry_.data() + geometry_.chunk_begin(chunk), kv_chunk_bytes);
    }
    at.ownership = Ownership::free;
  }
}

KvActor::KvActor(KvWorld& world, size_t index, uint32_t host)
    : world_(world),
      prng_(world.prng_.next()),
      program_{.host = host, .turn = [&world, index] { world.turn(index); }},
      memory_(world.fabric_, program_),
      reader_(memory_, world.geometry_),
      fiber_(std::make_unique<Fiber>([this] { live(); })) {}

void KvActor::live() {
  try {
    while (!part_) {
      program_.turn();
      if (program_.killed) throw Killed();
      const auto part = static_cast<uint32_t>(prng_.below(kv_parts));
      KvWorld::Part& at = world_.parts_[part];
      if (at.ownership != KvWorld::Ownership::free) continue;
      if (world_.at_once_ && at.epoch != 0 && at.host != program_.host) continue;
      at = {.ownership = KvWorld::Ownership::owned, .epoch = at.epoch + 1, .host = program_.host};
      part_ = part;
      own_ = std::make_unique<kv::BlockPart<EmulatedHost>>(
          memory_, world_.geometry_, part, at.epoch, program_.host,
          [world = &world_, host = program_.host](uint32_t holder, uint64_t epoch) {
            return world->is_dead(holder, epoch, host);
          });
      own_->take_over();
      ++world_.counts_.take_overs;
    }
    while (!program_.killed) operate();
  } catch (const Killed&) {
  }
}

void KvActor::operate() {
  const uint64_t what = prng_.below(100);
  if (what < 30)
    put();
  else if (what < 60)
    read();
  else if (what < 72)
    view();
  else if (what < 85)
    use_view();
  else
    remove();
  ++world_.counts_.operations;
  program_.turn();
  if (program_.killed) throw Killed();
}

Outcome KvActor::find(const kv::BlockKey& key, kv::Block* found) {
  Outcome worst = Outcome::gone;
  for (uint32_t part = 0; part < kv_parts; ++part) {
    const Outcome outcome = reader_.find(part, key, world_.now_s(), found);
    if (outcome == Outcome::done) return outcome;
    if (outcome != Outcome::gone) worst = outcome;
  }
  return worst;
}

void KvActor::put() {
  const auto key = static_cast<uint32_t>(prng_.below(world_.keys_));
  kv::Block block;
  block.key = kv_hash(key);
  kv::Block other;
  if (find(block.key, &other) != Outcome::gone) return;
  const std::vector<uint64_t> words(8 * prng_.between(1, 3), world_.next_content_++);
  const uint64_t content = words[0];
  const uint64_t bytes = words.size() * sizeof(uint64_t);
  const std::vector<std::byte> name = kv::name_bytes("", kv_key(key));
  kv::Room room;
  if (own_->reserve(kv::extent_bytes(bytes, "", kv_key(key)), &room) != Outcome::done) {
    ++world_.counts_.without_room;
    return remove();
  }
  std::byte* const at = world_.geometry_.data() + room.offset;
  memory_.write(at, words.data(), bytes);
  memory_.write(at + bytes, name.data(), name.size());
  if (prng_.chance(1, 8)) return own_->cancel(room);
  block.bytes = bytes;
  if (world_.geometry_.checksums()) {
    block.word = layout::block_word_summed;
    block.data_checksum = crc32c(std::as_bytes(std::span(words)));
  }
  if (world_.expires() && prng_.chance(1, 4))
    block.expires_unix_s = static_cast<uint32_t>(world_.now_s() + prng_.between(1, 4));
  world_.contents_[content] = {.key = key, .expires_s = block.expires_unix_s};
  // What one key had before may be pinned, and expired: then there are two of it.
  const Outcome outcome = own_->publish(room, &block, world_.now_s());
  if (outcome == Outcome::done) world_.contents_[content].published = world_.now_;
  ++world_.counts_.puts;
}

void KvActor::read() {
  const auto key = static_cast<uint32_t>(prng_.below(world_.keys_));
  const uint64_t begin = world_.now_;
  if (read_copy(key, begin)) return;
  kv::Block block;
  Outcome outcome = find(kv_hash(key), &block);
  if (outcome == Outcome::done) {
    const std::span<std::byte> bytes(bytes_, block.bytes), name(name_, sizeof name_);
    outcome = reader_.copy(block, bytes, name);
    if (outcome == Outcome::done) {
      if (!kv::has_names(name, "", kv_key(key))) return world_.fail("torn: another name");
      (void)check_bytes(key, begin, block, bytes);
      copies_[key] = {.block = block, .bytes = {bytes.begin(), bytes.end()}};
    } else if (outcome == Outcome::gone) {
      return;
    }
  }
  check_found(key, begin, outcome);
  ++world_.counts_.reads;
}

// As a space does with local copies, however old they are.
bool KvActor::read_copy(uint32_t key, uint64_t begin) {
  const auto copy = copies_.find(key);
  if (!world_.copies_ || copy == copies_.end() || prng_.chance(1, 8)) return false;
  if (!reader_.is_still(&copy->second.block)) {
    copies_.erase(copy);
    return false;
  }
  (void)check_bytes(key, begin, copy->second.block, copy->second.bytes);
  ++world_.counts_.copies;
  return true;
}

void KvActor::check_found(uint32_t key, uint64_t begin, Outcome outcome) {
  if (outcome == Outcome::corrupt) return world_.fail("corrupt: " + kv_key(key));
  if (outcome != Outcome::gone) return;
  for (const auto& [number, content] : world_.contents_)
    if (content.key == key && content.published != 0 && content.published < begin && content.removing == 0 &&
        content.disturbed < begin && (content.expires_s == 0 || content.expires_s > world_.now_s()))
      return world_.fail("lost: " + kv_key(key) + ", content " + std::to_string(number));
}

// The number of the content that the bytes are.
uint64_t KvActor::check_bytes(uint32_t key, uint64_t begin, const kv::Block& block,
                              std::span<const std::byte> bytes) {
  uint64_t first = 0;
  std::memcpy(&first, bytes.data(), sizeof first);
  for (size_t at = 0; at < bytes.size(); at += sizeof first)
    if (std::memcmp(bytes.data() + at, &first, sizeof first) != 0) {
      world_.fail("torn: words of two blocks, " + kv_key(key));
      return 0;
    }
  const auto content = world_.contents_.find(first);
  if (content == world_.contents_.end() || content->second.key != key || block.bytes != bytes.size()) {
    world_.fail("torn: no block of " + kv_key(key));
    return 0;
  }
  if (content->second.removed != 0 && content->second.removed < begin)
    world_.fail("stale: removed before, " + kv_key(key));
  if (content->second.expires_s != 0 && content->second.expires_s <= KvWorld::seconds(begin))
    world_.fail("stale: expired before, " + kv_key(key));
  ++world_.counts_.compared;
  return first;
}

void KvActor::view() {
  if (views_.size() >= world_.views_most_) return;
  const auto key = static_cast<uint32_t>(prng_.below(world_.keys_));
  const uint64_t begin = world_.now_;
  View view;
  if (find(kv_hash(key), &view.block) != Outcome::done) return;
  const auto pin = own_->pins().hold(pin_word(view.block.part, view.block.record, 0));
  if (!pin) return;
  view.pin = *pin;
  memory_.full_barrier(Step::pin_before_recheck);
  if (!reader_.holds_after_pin(view.block)) return own_->pins().drop(*pin);
  const std::span<std::byte> bytes(bytes_, view.block.bytes);
  memory_.invalidate(reader_.data(view.block), bytes.size(), Step::data_invalidated);
  memory_.load_barrier(Step::data_before_read);
  memory_.read(bytes.data(), reader_.data(view.block), bytes.size());
  memory_.load_barrier(Step::none);
  view.content = check_bytes(key, begin, view.block, bytes);
  views_.push_back(view);
  ++world_.counts_.pins;
  ++world_.counts_.compared_in_place;
}

void KvActor::use_view() {
  if (views_.empty()) return;
  const size_t index = prng_.below(views_.size());
  const View view = views_[index];
  uint64_t* const words = reinterpret_cast<uint64_t*>(bytes_);
  memory_.invalidate(reader_.data(view.block), view.block.bytes, Step::none);
  memory_.load_barrier(Step::none);
  memory_.read(words, reader_.data(view.block), view.block.bytes);
  memory_.load_barrier(Step::none);
  for (size_t at = 0; at < view.block.bytes / sizeof(uint64_t); ++at)
    if (words[at] != view.content) return world_.fail("moved: bytes under a pin");
  if (prng_.chance(1, 4)) return;
  own_->pins().drop(view.pin);
  views_.erase(views_.begin() + static_cast<ptrdiff_t>(index));
}

std::vector<kv::Block> KvActor::own_blocks() {
  std::vector<kv::Block> blocks;
  own_->each_block(0, world_.geometry_.records, [&](const kv::Block& block) { blocks.push_back(block); });
  return blocks;
}

void KvActor::remove() {
  const std::vector<kv::Block> blocks = own_blocks();
  if (blocks.empty()) return;
  const kv::Block& block = blocks[prng_.below(blocks.size())];
  uint64_t content = 0;
  const std::span<std::byte> bytes(bytes_, block.bytes), name(name_, sizeof name_);
  if (reader_.copy(block, bytes, name) != Outcome::done) return world_.fail("corrupt: an owner's own block");
  std::memcpy(&content, bytes.data(), sizeof content);
  KvWorld::Content& truth = world_.contents_[content];
  truth.removing = world_.now_;
  const Outcome outcome = own_->remove(block);
  if (outcome == Outcome::done) {
    truth.removed = world_.now_;
    ++world_.counts_.removals;
  } else {
    truth.removing = 0;
    truth.disturbed = world_.now_;
  }
}

}  // namespace terrace::coherence
