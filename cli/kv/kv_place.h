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
#include "terrace/kv_members.h"
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
  static Result<KvPlace> create(const Context& context, const std::string& path, uint64_t bytes,
                                const char* verb);

  std::span<std::byte> memory() const { return memory_; }
  const std::shared_ptr<OwnershipSource>& ownership() const { return ownership_; }
  LeaseEpoch lease_epoch() const { return lease_epoch_; }
  const std::string& shown() const { return shown_; }  // "lease 7 (cache)", "/dev/shm/cache"
  const std::string& where() const { return where_; }  // as it was given
  // As the list of a space's members has it: a lease's label, or its id; of a file the whole path.
  const std::string& called() const { return called_; }
  bool is_lease() const { return held_ != nullptr; }
  Lease& lease() const { return held_->lease(); }
  // How other members of a space here are opened. `place` and the context must outlive it.
  KvOpenMember opener() const;

 private:
  KvPlace(const Context& context, std::string where, const char* verb)
      : context_(&context), verb_(verb), where_(std::move(where)) {}
  Status open_lease(const Context& context, const char* verb);
  Status open_path(const char* verb);
  Status map_file(const char* verb);

  const Context* context_;
  const char* verb_;
  std::string where_, shown_, called_;
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
// With all members of the space. `place` must outlive it.
// Errors    as JoinedKvSpace::attach, with the place in their text and what can be done
Result<std::unique_ptr<JoinedKvSpace>> attach_kv(const KvPlace& place, KvUse use,
                                                 std::shared_ptr<KvSpill> spill = nullptr,
                                                 std::shared_ptr<KvLocal> local = nullptr);
// The member that is here, to read, without the others. Errors: as attach_kv()
Result<std::unique_ptr<KvSpace>> attach_kv_member(const KvPlace& place);

// "DIR" or "DIR:BYTES". Empty: none. Errors: as KvSpill::open; invalid_argument
Result<std::shared_ptr<KvSpill>> open_kv_spill(const std::string& text, bool puts);
// A size. Empty: none. Errors: as KvLocal::open; invalid_argument
Result<std::shared_ptr<KvLocal>> open_kv_local(const std::string& text);

// `error` with the place in front of its text.
Error kv_error_at(const KvPlace& place, Error error);

}  // namespace terrace::cli
