// SPDX-License-Identifier: Apache-2.0
// A KV space that is one of several members of a larger one (libclient/kv/joined): what that needs beside KvSpace.
//
// Threads   As KvSpace.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libclient/kv/block.h"
#include "libclient/kv/rules.h"
#include "terrace/kv_space.h"

namespace terrace {

class MemberKvSpace : public KvSpace {
 public:
  // Which blocks are there, whatever the spill has. By hashes, which who asks several members computes once. As many
  // answers as keys.
  virtual Status exists_here(std::span<const kv::BlockKey> keys, std::span<bool> found) = 0;
  // As begin_put(), but no block goes for it, nobody is asked for room, and it does not matter what the spill has.
  virtual Result<KvWrite> begin_put_in_free_room(const KvNamespace& name_space, std::string_view key,
                                                 uint64_t bytes, const KvPutOptions& options) = 0;
  // The bytes of one of the space's own blocks, if it is there and whole.
  virtual std::optional<std::string> read_own(std::string_view key) = 0;
  // Views and writes of this process. Once there are none and no call is running it can be destroyed.
  virtual uint64_t handles() const = 0;
  // Whether another living holder has a block of the space's own, in its part.
  virtual bool other_has_own(std::string_view key) = 0;
  virtual uint32_t parts_without_owner() = 0;
  virtual uint32_t other_holders() = 0;  // of parts and seats, that live
  // The data of all members: of a budget this one has the share that its own data is of that.
  virtual void share_budgets(uint64_t all_data_bytes) = 0;
  // What this member has of the operator's policy. Nothing: it could not be read now.
  virtual std::optional<kv::PolicyText> policy_text() = 0;
  // In the place of an older one. Errors: as set_policy(); already_exists: it has a newer one
  virtual Status put_policy(const kv::PolicyText& text, uint64_t wait_ns) = 0;

  // For moving blocks to other members. First those that are kept, then those that were used last.
  virtual std::vector<kv::Block> blocks_by_worth() = 0;
  // Nothing: it is gone, or not as it was put.
  virtual std::optional<kv::Names> copy_out(const kv::Block& block, std::vector<std::byte>* bytes) = 0;
  virtual bool is_still(const kv::Block& block) = 0;
  // A block of another member, in free room. Errors: as put()
  virtual Status put_copy(const kv::Names& said, const kv::Block& of, std::span<const std::byte> bytes) = 0;
};

// KvSpace::prefix() by its exists(), so many keys at a time that a short prefix costs little.
Result<uint64_t> prefix_by_exists(KvSpace& space, const KvNamespace& name_space,
                                  std::span<const std::string_view> keys);

// As KvSpace::attach.
Result<std::unique_ptr<MemberKvSpace>> attach_member(std::span<std::byte> memory, KvAttachOptions options);
// Of the space that is in this memory. Errors: as KvSpace::attach
Result<uint64_t> data_bytes_of(std::span<std::byte> memory);
// How to format memory of another size as this space was.
Result<KvFormatOptions> format_options_of(std::span<std::byte> memory);

namespace kv {
// Two keys of the space's own namespace, as of the policy: a list of generation G is under the key of G mod 2.
constexpr std::string_view member_list_key(size_t slot) {
  return slot == 0 ? "members 0" : "members 1";
}
// Who changes the list has a block of this key in its part meanwhile.
inline constexpr std::string_view member_edit_key = "members edit";
}  // namespace kv

}  // namespace terrace
