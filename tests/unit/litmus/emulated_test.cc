// SPDX-License-Identifier: Apache-2.0
// The shapes on memory that is not coherent, or faulty in one way: seen, and by which shape. Both sides are
// fibers of one thread, so that a seed decides everything.
#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "core/litmus/side.h"
#include "tests/coherence/emulated_hosts.h"
#include "tests/coherence/fiber.h"
#include "tests/unit/litmus/faulty_memory.h"

namespace terrace::litmus {
namespace {

using coherence::EmulatedHost;
using coherence::Fabric;
using coherence::Fiber;
using coherence::Program;
using EmulatedStep = coherence::Step;

// A host of the emulator that attacks the tensor protocol, as memory of a litmus run.
class FabricMemory {
 public:
  FabricMemory(Fabric& fabric, Program& program) : fabric_(fabric), program_(program), host_(fabric, program) {}

  uint64_t load(const uint64_t* word) const { return host_.load(word); }
  void store(uint64_t* word, uint64_t value) const { host_.store(word, value); }
  // Within its own cache, which is all that a processor without coherence can do.
  bool compare_exchange(uint64_t* word, uint64_t expected, uint64_t desired) const {
    program_.turn();
    if (fabric_.load(program_.host, word) != expected) return false;
    fabric_.store(program_.host, word, desired);
    return true;
  }
  void full_barrier() const { host_.full_barrier(EmulatedStep::none); }
  void publish(const uint64_t* at, size_t bytes) const {
    host_.write_back(at, bytes, EmulatedStep::none);
    full_barrier();
  }
  void refresh(const uint64_t* at, size_t bytes) const {
    host_.invalidate(at, bytes, EmulatedStep::none);
    full_barrier();
  }
  bool wait(uint64_t turn) const {
    host_.pause();
    return turn < 1'000'000;
  }
  void pause() const { host_.pause(); }

 private:
  Fabric& fabric_;
  Program& program_;
  EmulatedHost host_;
};
static_assert(LitmusMemory<FabricMemory>);

// Two sides that take turns as `seed` says. `make(index, turn)` gives a side's memory.
template <typename Make>
std::vector<Result<Report>> play(Region& region, uint64_t seed, uint64_t rounds, Make make) {
  Prng prng(seed);
  std::optional<Result<Report>> reports[2];
  std::unique_ptr<Fiber> fibers[2];
  for (size_t index = 0; index < 2; ++index) {
    fibers[index] = std::make_unique<Fiber>([&, index] {
      auto memory = make(index, [&, index] { fibers[index]->pause(); });
      Side side(*memory, region, {static_cast<Role>(index), rounds, seed * 2 + index + 1});
      const Status joined = side.join();
      reports[index].emplace(joined.ok() ? side.run() : Result<Report>(joined.error()));
    });
  }
  // One goes on for a few steps mostly: two in lockstep would see little.
  while (!fibers[0]->finished() || !fibers[1]->finished()) {
    Fiber& next = *fibers[prng.below(2)];
    for (uint64_t steps = prng.below(6) + 1; steps > 0 && !next.finished(); --steps) next.resume();
  }
  return {std::move(*reports[0]), std::move(*reports[1])};
}

std::vector<Result<Report>> play_on_fabric(uint32_t hosts, uint32_t wildness, uint64_t seed) {
  Fabric fabric(region_bytes, hosts, seed);
  fabric.set_wildness(wildness);
  auto& region = *reinterpret_cast<Region*>(fabric.memory().data());
  std::unique_ptr<Program> programs[2];
  return play(region, seed, rounds_min, [&](size_t index, std::function<void()> turn) {
    programs[index] = std::make_unique<Program>();
    programs[index]->host = hosts == 1 ? 0 : static_cast<uint32_t>(index);
    programs[index]->turn = std::move(turn);
    return std::make_unique<FabricMemory>(fabric, *programs[index]);
  });
}

std::vector<Result<Report>> play_faulty(Fault fault, uint64_t seed) {
  auto memory = std::make_unique<Region>();
  return play(*memory, seed, rounds_min, [&](size_t index, std::function<void()> turn) {
    return std::make_unique<FaultyMemory>(*memory, fault, seed + index, std::move(turn));
  });
}

// The shapes in which something forbidden was seen.
std::set<Shape> caught(const Result<Report>& report) {
  REQUIRE_MESSAGE(report.ok(), (report.ok() ? "" : report.error().to_string()));
  std::set<Shape> shapes;
  for (size_t at = 0; at < all_shapes.size(); ++at)
    if (report->shapes.at(at).forbidden > 0) shapes.insert(all_shapes[at]);
  return shapes;
}

const std::set<Shape> every_shape(all_shapes.begin(), all_shapes.end());

}  // namespace

TEST_CASE("litmus emulated: hosts without coherent caches are found in every shape, however calm they are") {
  for (const uint32_t wildness : {0u, 4u, 16u, 48u}) {
    CAPTURE(wildness);
    const auto reports = play_on_fabric(2, wildness, 7 + wildness);
    for (const auto& report : reports) {
      CHECK(caught(report) == every_shape);
      CHECK(report->verdict == Verdict::not_coherent);
    }
    CHECK(*reports[0] == *reports[1]);
  }
}

TEST_CASE("litmus emulated: two programs on one of those hosts share its cache, and are coherent") {
  for (const uint32_t wildness : {0u, 16u, 48u}) {
    CAPTURE(wildness);
    const auto reports = play_on_fabric(1, wildness, 3 + wildness);
    for (const auto& report : reports) {
      CHECK(caught(report).empty());
      CHECK(report->verdict == Verdict::coherent);
    }
  }
}

TEST_CASE("litmus emulated: memory without a fault is coherent, and the sides meet in every shape") {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const auto reports = play_faulty(Fault::none, seed);
    CHECK(caught(reports[0]).empty());
    CHECK(reports[0]->verdict == Verdict::coherent);
    for (const ShapeResult& shape : reports[0]->shapes) {
      CAPTURE(shape.name);
      CHECK(shape.met > 0);
    }
    CHECK(*reports[0] == *reports[1]);
  }
}

TEST_CASE("litmus emulated: each fault is seen by the shapes that are made for it") {
  struct Case {
    Fault fault;
    std::set<Shape> seen_by;    // at least
    std::set<Shape> unseen_by;  // never: the fault does not concern it
  };
  const Case cases[] = {
      {Fault::stale_loads, {Shape::one_location, Shape::message_passing, Shape::torn_record}, {}},
      {Fault::stores_reordered,
       {Shape::message_passing, Shape::write_order, Shape::torn_record},
       {Shape::one_location, Shape::compare_and_swap}},
      {Fault::barrier_ignored,
       {Shape::store_buffering},
       {Shape::message_passing, Shape::load_buffering, Shape::one_location, Shape::write_order,
        Shape::torn_record, Shape::compare_and_swap}},
      {Fault::swap_divisible,
       {Shape::compare_and_swap},
       {Shape::message_passing, Shape::store_buffering, Shape::load_buffering, Shape::one_location,
        Shape::write_order, Shape::torn_record}},
      {Fault::stores_lost, {Shape::torn_record}, {}},
  };
  for (const Case& one : cases) {
    CAPTURE(static_cast<int>(one.fault));
    const auto reports = play_faulty(one.fault, 11);
    const std::set<Shape> shapes = caught(reports[0]);
    for (const Shape shape : one.seen_by) {
      CAPTURE(std::string(shape_name(shape)));
      CHECK(shapes.contains(shape));
    }
    for (const Shape shape : one.unseen_by) {
      CAPTURE(std::string(shape_name(shape)));
      CHECK_FALSE(shapes.contains(shape));
    }
    CHECK(reports[0]->verdict == Verdict::not_coherent);
    CHECK(*reports[0] == *reports[1]);
  }
}

TEST_CASE("litmus emulated: results that do not arrive end the run, they are not counted") {
  const auto reports = play_faulty(Fault::results_lost, 5);
  for (const auto& report : reports) {
    REQUIRE(!report.ok());
    CHECK((report.error().code == ErrorCode::corrupt || report.error().code == ErrorCode::unavailable));
  }
}

TEST_CASE("litmus emulated: a second process that plays the same side is told of") {
  auto memory = std::make_unique<Region>();
  uint64_t looks = 0;
  FaultyMemory interrupted(*memory, Fault::none, 1, [&] {
    if (++looks == 200) memory->sides[0].nonce = 4711;  // another first side writes its line
  });
  Side<FaultyMemory> side(interrupted, *memory, {Role::first, 64, 98});
  const Status status = side.join();
  REQUIRE(!status.ok());
  CHECK(status.error().code == ErrorCode::busy);
  CHECK(status.error().detail.find("another process runs that side") != std::string::npos);
}

}  // namespace terrace::litmus
