// SPDX-License-Identifier: Apache-2.0
// KvSpaceOf: copies of hot blocks in this process's memory (local/).
//
//   a copy is made                                 a copy answers
//   the block read as any reader does: whole        found by its key, and held
//   its second use within a while                   its block's record: the same version, live, not expired
//   copied, with its name                           its name is the one that was asked for
//   found from then on                              only then is it given to anybody
//
// Invariant
//   K4  what a copy gives was its block's while the call ran: live, not expired, not replaced, under the name that was asked for.
//
// A block's version never comes back, so a record that says what it said at the copy has the same bytes. Nothing in the space keeps a
// block because of its copies, and nothing there knows of them.
#pragma once

namespace terrace {

// A copy of the block that the space has now under this key. `now`: the block, as its record is.
template <typename Memory>
kv::LocalRef KvSpaceOf<Memory>::find_local(const KvNamespace& name_space, std::string_view name,
                                           const kv::BlockKey& key, Block* now) {
  if (local() == nullptr || forked()) return {};
  kv::LocalRef copy = local()->find(*local_share_, key);
  if (!copy) return {};
  *now = copy->block;
  if (!reader_.is_still(now) || now->is_expired(now_unix_s())) {
    local()->drop(*copy);
    add(counts_.local_stale);
    return {};
  }
  if (!kv::has_names(copy->name(), name_space.name(), name)) return {};
  return copy;
}

template <typename Memory>
void KvSpaceOf<Memory>::count_local_hit(kv::LocalCopy& copy, const Block& now) {
  local()->use(copy);
  note_use(now);
  add(counts_.hits);
  add(counts_.hit_bytes, now.bytes);
  add(counts_.local_hits);
  add(counts_.local_hit_bytes, now.bytes);
}

template <typename Memory>
std::optional<Result<uint64_t>> KvSpaceOf<Memory>::get_local(const KvNamespace& name_space, const KvGet& get,
                                                             const kv::BlockKey& key) {
  Block now;
  const kv::LocalRef copy = find_local(name_space, get.key, key, &now);
  if (!copy) return std::nullopt;
  if (get.into.size() < now.bytes) return too_short(get.key, get.into.size(), now.bytes);
  if (now.bytes != 0) std::memcpy(get.into.data(), copy->bytes().data(), now.bytes);
  count_local_hit(*copy, now);
  return now.bytes;
}

// `bytes` and `name` were read from the block, and are whole. Where some of them was lost the caller hears of the lease's
// end; a copy would be taken for right.
template <typename Memory>
void KvSpaceOf<Memory>::keep_local(const KvNamespace& name_space, const Block& block,
                                   std::span<const std::byte> bytes, std::span<const std::byte> name) {
  if (!may_keep_local(block)) return;
  const kv::LocalRef copy = local()->begin(local_share_, block, name_space.name());
  if (!copy) return;
  if (!bytes.empty()) std::memcpy(copy->bytes().data(), bytes.data(), bytes.size());
  std::memcpy(copy->name().data(), name.data(), std::min(name.size(), copy->name().size()));
  local()->finish(*copy);
  add(counts_.local_copied);
}

template <typename Memory>
bool KvSpaceOf<Memory>::may_keep_local(const Block& block) {
  return local() != nullptr && !forked() && os::LossyAccesses::lost_address() == nullptr &&
         local()->wants(*local_share_, block);
}

// Copies a block that was found but not read. Nothing: it gets no copy, or it was not whole.
template <typename Memory>
kv::LocalRef KvSpaceOf<Memory>::copy_local(const KvNamespace& name_space, std::string_view name,
                                           const Block& block) {
  if (!may_keep_local(block)) return {};
  kv::LocalRef copy = local()->begin(local_share_, block, name_space.name());
  if (!copy) return {};
  if (reader_.copy(block, copy->bytes(), copy->name()) != Outcome::done ||
      !kv::has_names(copy->name(), name_space.name(), name) || os::LossyAccesses::lost_address() != nullptr) {
    local()->drop(*copy);
    return {};
  }
  local()->finish(*copy);
  add(counts_.local_copied);
  return copy;
}

template <typename Memory>
KvView KvSpaceOf<Memory>::view_of(kv::LocalRef copy) {
  KvView view;
  view.bytes_ = copy->bytes();
  view.copy_ = copy.release();
  return view;
}

}  // namespace terrace
