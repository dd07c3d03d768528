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
  };

  void live();
  bool claim();
  void compare_after_take_over(uint32_t part);
  void leave();
  void operate();

  void create();
  void remove();
  void write();
  void find();
  void read();
  void look();
  void pin();
  void use_view(View& view);
  void drop_view();

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
  std::unique_ptr<Fiber> fiber_;
};

}  // namespace terrace::coherence
