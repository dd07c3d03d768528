#include "tests/coherence/world.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "tests/coherence/actor.h"

namespace terrace::coherence {
namespace {

constexpr uint32_t hosts = 3;
constexpr uint32_t actors = 5;  // on the hosts in turn: two of the hosts have two
constexpr uint32_t parts = 6;   // one is always without owner
constexpr uint64_t space_bytes = 4096 + parts * 2 * 4096;

Geometry format(std::span<std::byte> memory, bool checksums) {
  GeometryOptions options{.parts = parts, .records = 8, .pins = 8, .mode = layout::SpaceMode::noncoherent};
  if (checksums) options.features = layout::space_feature_checksums;
  const Result<layout::SpaceHeader> header = plan_header(memory, options);
  TERRACE_CHECK(header.ok(), "the emulated space has room");
  const Result<Geometry> geometry = check_header(*header, memory);
  TERRACE_CHECK(geometry.ok(), "what was planned is accepted");
  return *geometry;
}

}  // namespace

void WorldCounts::add(const WorldCounts& other) {
  operations += other.operations;
  accesses += other.accesses;
  reads += other.reads;
  stale_free_looks += other.stale_free_looks;
  publications += other.publications;
  pins += other.pins;
  creations += other.creations;
  removals += other.removals;
  finds += other.finds;
  take_overs += other.take_overs;
  deaths += other.deaths;
  power_losses += other.power_losses;
  refused += other.refused;
}

World::World(const WorldOptions& options)
    : options_(options),
      prng_(options.seed),
      fabric_(space_bytes, hosts, options.seed ^ 0x5eed),
      parts_(parts) {
  // Checksums would find torn bytes by themselves: half of the worlds go without.
  geometry_ = format(fabric_.memory(), prng_.chance(1, 4));
  fabric_.leave_out(options.left_out);
  actors_.resize(actors);
  for (size_t index = 0; index < actors; ++index) start(index);
}

World::~World() {
  for (const auto& actor : actors_) {
    actor->program().killed = true;
    while (!actor->fiber().finished()) actor->fiber().resume();
  }
}

void World::start(size_t index) {
  actors_[index] = std::make_unique<Actor>(*this, index, static_cast<uint32_t>(index % hosts));
}

void World::fail(const std::string& what) {
  if (failure_.empty())
    failure_ = what + " (seed " + std::to_string(options_.seed) + ", after " +
               std::to_string(counts_.operations) + " operations)";
}

// Called by a program before each of its accesses.
void World::turn(size_t index) {
  ++now_;
  ++counts_.accesses;
  if ((prng_.next() & 63) < turns_of_64_) actors_[index]->fiber().pause();
}

void World::run(uint64_t operations) {
  const uint64_t end = counts_.operations + operations;
  while (counts_.operations < end && failure_.empty()) {
    const uint64_t draw = prng_.next();
    if ((draw >> 32 & 1023) == 0) disturb();
    fence_the_dead();
    const size_t index = static_cast<size_t>(draw % actors_.size());
    Actor& actor = *actors_[index];
    if (actor.fiber().finished())
      start(index);
    else
      actor.fiber().resume();
  }
}

void World::kill(size_t index) {
  Actor& actor = *actors_[index];
  if (actor.fiber().finished() || actor.program().killed) return;
  ++counts_.deaths;
  actor.program().killed = true;
  while (!actor.fiber().finished()) actor.fiber().resume();
  for (uint32_t part = 0; part < parts; ++part)
    if (actor.part() == part) {
      parts_[part].ownership = Ownership::dying;
      parts_[part].fenced_at = now_ + prng_.below(2000);
      note_activity(part);
    }
}

void World::note_activity(uint32_t part) {
  for (const auto& [identity, truth] : truths_)
    if (std::get<0>(identity) == part) ++truth->activity;
}

// Now and then: other weather, a death, a power cut.
void World::disturb() {
  constexpr uint32_t weathers[] = {1, 4, 16, 48};
  fabric_.set_wildness(weathers[prng_.below(4)]);
  turns_of_64_ = weathers[prng_.below(4)];
  if (!options_.crashes) return;
  if (prng_.chance(1, 4)) kill(prng_.below(actors_.size()));
  if (!prng_.chance(1, 16)) return;
  const auto host = static_cast<uint32_t>(prng_.below(hosts));
  ++counts_.power_losses;
  for (size_t index = 0; index < actors_.size(); ++index)
    if (actors_[index]->program().host == host) kill(index);
  fabric_.lose_power(host);
}

// A dead holder's lines leave its host's caches before anybody hears that it is dead.
void World::fence_the_dead() {
  for (uint32_t part = 0; part < parts; ++part) {
    Part& at = parts_[part];
    if (at.ownership != Ownership::dying || at.fenced_at > now_) continue;
    fabric_.fence(at.host, geometry_.part_at(part), geometry_.part_bytes);
    at.ownership = Ownership::free;
    note_activity(part);  // what it stored last may have come out only now
  }
}

std::shared_ptr<Truth> World::truth_of(const Located& tensor) const {
  const auto found = truths_.find(identity_of(tensor));
  return found == truths_.end() ? nullptr : found->second;
}

}  // namespace terrace::coherence
