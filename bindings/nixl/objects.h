// SPDX-License-Identifier: Apache-2.0
// Objects: blocks of a KV space, by key, in one namespace.
//
// Threads   open() once, before the rest; the rest from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/nixl/leased_memory.h"
#include "bindings/nixl/settings.h"
#include "terrace/kv_space.h"

namespace terrace::nixl {

// Bytes of an object, and where in this process they come from or go to.
struct ObjectPiece {
  uint64_t offset = 0;
  std::byte* memory = nullptr;
  size_t bytes = 0;
};

class Objects {
 public:
  // Attaches to the space of the settings. Errors: with the name of the lease, and what to do
  Status open(const Settings& settings, LeasedMemory& leases);
  bool is_open() const { return space_ != nullptr; }

  // `pieces` make up the whole object, in order.
  // Errors    as KvSpace::put(); where blocks are not replaced, one that is there is no error
  Status put(const std::string& key, std::span<const ObjectPiece> pieces);
  // Errors    not_found; limit_exceeded  the object ends before a piece does; lease_expired
  Status get(const std::string& key, std::span<const ObjectPiece> pieces);
  // Of each key; nothing: it is not there.
  Result<std::vector<std::optional<uint64_t>>> lengths(std::span<const std::string_view> keys);

  uint64_t bytes_max() const { return bytes_max_; }
  const std::shared_ptr<Lease>& lease() const { return lease_; }
  const std::string& name_space() const { return names_.name(); }

 private:
  Result<KvWrite> room(const std::string& key, uint64_t bytes);

  std::shared_ptr<Lease> lease_;
  std::unique_ptr<Mapping> mapping_;
  std::unique_ptr<KvSpace> space_;
  KvNamespace names_;
  KvPutOptions put_options_;
  bool replaces_ = true;
  uint64_t bytes_max_ = 0;
};

}  // namespace terrace::nixl
