// SPDX-License-Identifier: Apache-2.0
// WHERE a KV space is: a lease, or a path to a file or a dax device; open, mapped, with what decides who owns a part.
//
// Ownership A KvPlace has the session, the lease and the mapping; a KvSpace in it must go first.
// Threads   The main thread; notices of a lease are told on stderr by the session's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cli/hold/held_lease.h"
#include "cli/terminal/output.h"
#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/os/persist.h"
#include "terrace/kv_local.h"
#include "terrace/kv_space.h"
#include "terrace/kv_spill.h"
#include "terrace/mapping.h"

namespace terrace::cli {

class KvPlace {
 public:
  // What has a '/' is a path; anything else a lease's id or label. `verb` is the verb's name.
  // Errors    as HeldLease::take, Mapping::map, os_error; invalid_argument: no memory that can be shared
  static Result<KvPlace> open(const Context& context, const std::string& where, const char* verb);
  // Makes a file of so many bytes, this user's alone. Errors: already_exists; as os_error.
  static Result<KvPlace> create(const std::string& path, uint64_t bytes, const char* verb);

  std::span<std::byte> memory() const { return memory_; }
  const std::shared_ptr<OwnershipSource>& ownership() const { return ownership_; }
  LeaseEpoch lease_epoch() const { return lease_epoch_; }
  const std::string& shown() const { return shown_; }  // "lease 7 (cache)", "/dev/shm/cache"
  const std::string& where() const { return where_; }  // as it was given

 private:
  explicit KvPlace(std::string where) : where_(std::move(where)) {}
  Status open_lease(const Context& context, const char* verb);
  Status open_path(const char* verb);
  Status map_file(const char* verb);

  std::string where_, shown_;
  std::shared_ptr<HeldLease> held_;
  std::unique_ptr<Mapping> mapping_;
  UniqueFd file_;
  std::optional<os::FileMap> file_map_;
  std::span<std::byte> memory_;
  std::shared_ptr<OwnershipSource> ownership_;
  LeaseEpoch lease_epoch_;
};

// What a verb does with a space decides what it claims there.
enum class KvUse : uint8_t {
  reads,   // no part, no thread: it may look at a space that is full of others
  writes,  // a part once it puts a block, which it gives back at its end
  serves,  // as `writes`, with a thread that does what other holders wait for
  serves_reads,
};
// Errors    as KvSpace::attach, with the place in their text and what can be done
Result<std::unique_ptr<KvSpace>> attach_kv(const KvPlace& place, KvUse use,
                                           std::shared_ptr<KvSpill> spill = nullptr,
                                           std::shared_ptr<KvLocal> local = nullptr);

// "DIR" or "DIR:BYTES". Empty: none. Errors: as KvSpill::open; invalid_argument
Result<std::shared_ptr<KvSpill>> open_kv_spill(const std::string& text, bool puts);
// A size. Empty: none. Errors: as KvLocal::open; invalid_argument
Result<std::shared_ptr<KvLocal>> open_kv_local(const std::string& text);

// `error` with the place in front of its text.
Error kv_error_at(const KvPlace& place, Error error);

}  // namespace terrace::cli
