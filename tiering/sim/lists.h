// SPDX-License-Identifier: Apache-2.0
// Doubly linked lists over object numbers, for the simulated caches. Lists are intrusive: an object is in at most
// one list of a Lists.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace::tiering {

inline constexpr uint32_t nobody = UINT32_MAX;

// List 0 is "in none"; the others are numbered from 1.
class Lists {
 public:
  Lists(uint32_t objects, uint8_t lists) : nodes_(objects), ends_(lists + 1u) {}

  uint8_t where(uint32_t object) const { return nodes_[object].list; }
  uint64_t size(uint8_t list) const { return ends_[list].size; }
  uint32_t oldest(uint8_t list) const { return ends_[list].oldest; }
  uint32_t newer_than(uint32_t object) const { return nodes_[object].newer; }  // nobody: it is the newest

  void remove(uint32_t object) {
    Node& node = nodes_[object];
    Ends& ends = ends_[node.list];
    (node.older == nobody ? ends.oldest : nodes_[node.older].newer) = node.newer;
    (node.newer == nobody ? ends.newest : nodes_[node.newer].older) = node.older;
    --ends.size;
    node = Node{};
  }

  void push(uint8_t list, uint32_t object) {
    if (where(object) != 0) remove(object);
    Ends& ends = ends_[list];
    nodes_[object] = {.older = ends.newest, .newer = nobody, .list = list};
    (ends.newest == nobody ? ends.oldest : nodes_[ends.newest].newer) = object;
    ends.newest = object;
    ++ends.size;
  }

  uint32_t pop_oldest(uint8_t list) {
    const uint32_t object = oldest(list);
    remove(object);
    return object;
  }

 private:
  struct Node {
    uint32_t older = nobody;
    uint32_t newer = nobody;
    uint8_t list = 0;
  };
  struct Ends {
    uint32_t oldest = nobody;
    uint32_t newest = nobody;
    uint64_t size = 0;
  };
  std::vector<Node> nodes_;
  std::vector<Ends> ends_;
};

}  // namespace terrace::tiering
