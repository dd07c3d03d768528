// SPDX-License-Identifier: Apache-2.0
// One program of an emulated world: claims a part, then does operations at random until it is killed.
#pragma once

#include "tests/coherence/world.h"

namespace terrace::coherence {

class Actor {
 public:
  Actor(World& world, size_t index, uint32_t host);

  Fiber& fiber() { return *fiber_; }
  Program& program() { return program_; }
  std::optional<uint32_t> part() const { return part_; }

  // Called before each access: count down to the death, and to the pause, that its operation was given.
  bool at_its_last_access() { return dies_in_ != 0 && --dies_in_ == 0; }
  bool begins_to_stall();
  bool stands_still() const;
  void forget_pins();  // it died: nothing that it reads in place is in anybody's way any more

 private:
  struct Handle {
    Located tensor;
    std::shared_ptr<Truth> truth;
    uint64_t version = 0;  // last read
  };
  struct View {
    Handle handle;
    uint32_t pin = 0;
    uint64_t version = 0;
    std::span<const std::byte> bytes;
    uint64_t content = 0;
    uint64_t since = 0;
  };
  // A slot that is being written while the program does other things, as another of its threads would.
  struct Writing {
    Handle handle;
    Ticket ticket;
    uint64_t content = 0;
    size_t written = 0;  // bytes
  };

  void live();
  bool claim();
  void compare_after_take_over(uint32_t part);
  void leave();
  void operate();
  void operate_at_random();

  void create();
  void remove();
  void write();
  void write_some(Writing& writing, size_t bytes);
  void end_write(const Writing& writing);
  void go_on_writing();
  bool is_being_written(const Located& tensor) const;
  void find();
  void read();
  void look();
  void pin();
  void use_view(View& view);
  void drop_view();

  std::string some_name();
  Handle* some_handle();
  Handle* own_handle();
  Expected expect(const Handle& handle) const;
  void check_outcome(const Handle& handle, const Expected& expected, Outcome outcome, const char* what);
  void check_content(const Handle& handle, uint64_t version, uint64_t content, std::span<const std::byte> bytes,
                     const char* what);
  void check_unique(const Handle& handle);
  void fail(const std::string& kind, const Handle& handle, const std::string& what);

  World& world_;
  Prng prng_;
  Program program_;
  SpaceCore<EmulatedHost> space_;
  std::optional<uint32_t> part_;
  std::vector<Handle> handles_;
  std::vector<View> views_;
  std::vector<Writing> writings_;
  bool only_looks_ = false;  // what it does now stores to no tensor
  uint64_t stalled_until_ = 0;
  std::optional<uint64_t> stalled_for_;   // until there were more take-overs than this
  uint32_t dies_in_ = 0, stalls_in_ = 0;  // accesses; 0: not at one
  std::unique_ptr<Fiber> fiber_;
};

}  // namespace terrace::coherence
