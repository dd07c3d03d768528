// SPDX-License-Identifier: Apache-2.0
#include "tests/coherence/world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "tests/coherence/actor.h"

namespace terrace::coherence {
namespace {

constexpr uint32_t hosts = 3;
constexpr uint64_t chunk_bytes = 512;  // fewer than most tensors have, and never of two tensors for long

Geometry format(std::span<std::byte> memory, uint32_t parts, uint32_t seats, bool checksums) {
  GeometryOptions options{.parts = parts,
                          .records = 8,
                          .pins = 8,
                          .seats = seats,
                          .mode = layout::SpaceMode::noncoherent,
                          .chunk_bytes = chunk_bytes};
  if (checksums) options.features = layout::space_feature_checksums;
  const Result<layout::SpaceHeader> header = plan_header(memory, options);
  TERRACE_CHECK(header.ok(), "the emulated space has room");
  const Result<Geometry> geometry = check_header(*header, memory);
  TERRACE_CHECK(geometry.ok(), "what was planned is accepted");
  return *geometry;
}

// Sometimes little, so that holders want each other's.
uint64_t data_bytes_of(const Temper& temper) {
  return temper.data_pages * uint64_t{4096};
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
  stalls += other.stalls;
  open_writes += other.open_writes;
  without_room += other.without_room;
}

// A crowd with many names; a few programs with few names; two or three at one tensor, where owners die all the time,
// so that a reader that stands still meets few publications and then a take-over; or programs that create and remove
// all the time in little room, so that chunks go from one part to another.
Temper World::draw_temper(Prng& prng, uint32_t seats) {
  constexpr uint32_t stalls[] = {0, 1, 4, 16};
  Temper temper;
  temper.stalls_of_256 = stalls[prng.below(4)];
  temper.doomed_of_1024 = prng.chance(1, 2) ? 4 : 0;
  temper.open_writes_of_8 = static_cast<uint32_t>(prng.below(5));
  const bool little_room = prng.chance(1, 2);
  const uint64_t kind = prng.below(4);
  if (little_room) temper.data_pages = static_cast<uint32_t>(prng.between(1, 2));
  temper.seats = seats;
  if (kind == 2) return temper;
  if (kind == 3) {
    temper.actors = static_cast<uint32_t>(prng.between(3, 6));
    temper.data_pages = 1;
    temper.habits.create = 40;
    temper.habits.remove = 30;
    if (prng.chance(1, 2)) return temper;
    // Many of one host, which share a cache and lose power together.
    temper.hosts = static_cast<uint32_t>(prng.between(1, 2));
    temper.stalls_of_256 = 64;
    temper.doomed_of_1024 = 32;
    return temper;
  }
  temper.actors = static_cast<uint32_t>(prng.between(2, 4));
  temper.parts = temper.actors + static_cast<uint32_t>(prng.below(2));
  temper.names = static_cast<uint32_t>(prng.between(1, 3));
  temper.seats = std::min(seats, temper.parts);
  if (kind == 1) return temper;
  temper.names = 1;
  temper.actors = static_cast<uint32_t>(prng.between(2, 3));
  temper.parts = temper.actors;
  temper.seats = std::min(seats, temper.parts);
  temper.stalls_of_256 = 64;
  temper.doomed_of_1024 = static_cast<uint32_t>(8 << prng.below(3));
  temper.habits = {.create = 4,
                   .remove = static_cast<uint32_t>(prng.below(2)),
                   .write = 30,
                   .find = 10,
                   .read = 40,
                   .look = 5,
                   .pin = 5,
                   .drop_view = 5,
                   .leave = 1};
  return temper;
}

World::World(const WorldOptions& options)
    : options_(options),
      prng_(options.seed),
      temper_(draw_temper(prng_, options.seats)),
      fabric_(4096 + temper_.parts * 4096 + data_bytes_of(temper_), hosts, options.seed ^ 0x5eed),
      parts_(temper_.parts + temper_.seats) {
  // Checksums would find torn bytes by themselves: most of the worlds go without.
  geometry_ = format(fabric_.memory(), temper_.parts, temper_.seats, prng_.chance(1, 4));
  fabric_.leave_out(options.left_out);
  actors_.resize(temper_.actors);
  for (size_t index = 0; index < actors_.size(); ++index) start(index);
}

World::~World() {
  for (const auto& actor : actors_) {
    actor->program().killed = true;
    while (!actor->fiber().finished()) actor->fiber().resume();
  }
}

void World::start(size_t index) {
  actors_[index] = std::make_unique<Actor>(*this, index, static_cast<uint32_t>(index % temper_.hosts));
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
  Actor& actor = *actors_[index];
  const uint64_t draw = prng_.next();
  bool pauses = (draw & 63) < turns_of_64_;
  if (actor.at_its_last_access()) {
    doomed_ = index;
    pauses = true;
  } else if (actor.begins_to_stall()) {
    ++counts_.stalls;
    pauses = true;
  }
  if (pauses) actor.fiber().pause();
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
    else if (actor.stands_still())
      ++now_;
    else
      actor.fiber().resume();
    carry_out_doom();
  }
}

void World::carry_out_doom() {
  if (!doomed_) return;
  const size_t index = *std::exchange(doomed_, std::nullopt);
  if (prng_.chance(1, 4))
    cut_power(actors_[index]->program().host);
  else
    kill(index);
}

void World::kill(size_t index) {
  Actor& actor = *actors_[index];
  if (actor.fiber().finished() || actor.program().killed) return;
  ++counts_.deaths;
  ++ownership_changes_;
  actor.program().killed = true;
  while (!actor.fiber().finished()) actor.fiber().resume();
  actor.forget_pins();
  for (uint32_t part = 0; part < parts_.size(); ++part)
    if (actor.part() == part) {
      parts_[part].ownership = Ownership::dying;
      parts_[part].fenced_at = now_ + prng_.below(2000);
      note_activity(part);
    }
}

bool World::owners_are_settled() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return part.ownership != Ownership::dying && !(part.ownership == Ownership::owned && part.repairing);
  });
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
  cut_power(static_cast<uint32_t>(prng_.below(hosts)));
}

void World::cut_power(uint32_t host) {
  ++counts_.power_losses;
  for (size_t index = 0; index < actors_.size(); ++index)
    if (actors_[index]->program().host == host) kill(index);
  fabric_.lose_power(host);
}

// A dead holder's lines leave its host's caches before anybody hears that it is dead.
void World::fence_the_dead() {
  for (uint32_t part = 0; part < parts_.size(); ++part) {
    Part& at = parts_[part];
    if (at.ownership != Ownership::dying || at.fenced_at > now_) continue;
    fabric_.fence(at.host, geometry_.owner(part),
                  part < geometry_.parts ? geometry_.part_bytes : geometry_.pins_end());
    if (part < geometry_.parts) fence_chunks(at.host, part);
    at.ownership = Ownership::free;
    ++ownership_changes_;
    note_activity(part);  // what it stored last may have come out only now
  }
}

// Only those that the part has: what its owner stored to others, and did not write back, stays for the caches to play
// with.
void World::fence_chunks(uint32_t host, uint32_t part) {
  for (uint32_t chunk = 0; chunk < geometry_.chunks; ++chunk) {
    uint64_t claim = 0;
    std::memcpy(&claim, geometry_.claim(part, chunk), sizeof claim);
    if (claim != static_cast<uint64_t>(layout::ChunkClaim::none))
      fabric_.fence(host, geometry_.data() + geometry_.chunk_begin(chunk),
                    geometry_.chunk_end(chunk) - geometry_.chunk_begin(chunk));
  }
}

std::shared_ptr<Truth> World::truth_of(const Located& tensor) const {
  const auto found = truths_.find(identity_of(tensor));
  return found == truths_.end() ? nullptr : found->second;
}

}  // namespace terrace::coherence
