// SPDX-License-Identifier: Apache-2.0
// KvSpaceOf: what is evicted because of room goes to the spill, and what is not in the space is looked for there.
//
// A block that is erased must not come back by a copy that was on its way. So erase() erases in the spill, then in the
// space, then in the spill again; who offers a block has noted what was erased before it looks whether the block is
// there still; who puts one back looks afterwards whether the spill still has it.
#pragma once

namespace terrace {

template <typename Memory>
Result<KvWrite> KvSpaceOf<Memory>::begin_put(const KvNamespace& name_space, std::string_view key,
                                             uint64_t bytes, const KvPutOptions& options) {
  uint64_t waited_ns = 0;
  return begin_unspilled(name_space, key, bytes, options, &waited_ns);
}

// What is in the spill is there: else a key could have one block here and an older one there.
template <typename Memory>
Result<KvWrite> KvSpaceOf<Memory>::begin_unspilled(const KvNamespace& name_space, std::string_view key,
                                                   uint64_t bytes, const KvPutOptions& options,
                                                   uint64_t* waited_ns) {
  TERRACE_RETURN_IF_ERROR(check_key(key));
  if (spill() != nullptr && !forked() &&
      spill()->look_up(kv::key_of(kv::namespace_hash(name_space.name()), key)))
    return refuse(ErrorCode::already_exists, who(key) + " is there already, in the spill");
  return begin_here(name_space, key, bytes, options, waited_ns);
}

// Before the block is removed. Where the queue is full it is passed over.
template <typename Memory>
void KvSpaceOf<Memory>::offer_to_spill(const Block& block) {
  if (spill() == nullptr || block.is_expired(now_unix_s())) return;
  const auto [write, is_there] = spill()->begin_put({.key = block.key,
                                                     .bytes = block.bytes,
                                                     .parent = block.parent,
                                                     .name_space = block.name_space,
                                                     .expires_unix_s = block.expires_unix_s},
                                                    block.extent_bytes);
  if (is_there) return;
  if (write == nullptr) return add(counts_.spill_dropped);
  std::byte* const frame = write->frame.get();
  const uint64_t names = block.name_offset() - block.offset;
  std::memset(frame + block.bytes, 0, names - block.bytes);
  const Outcome copied = reader_.copy(block, {frame, block.bytes}, {frame + names, block.extent_bytes - names});
  if (copied != Outcome::done) return spill()->cancel_put(*write);
  spill()->finish_put(write);
  add(counts_.spilled);
}

// Nothing: it is not there either.
template <typename Memory>
std::optional<Result<uint64_t>> KvSpaceOf<Memory>::get_spilled(const KvNamespace& name_space, const KvGet& get,
                                                               const kv::BlockKey& key) {
  if (spill() == nullptr) return std::nullopt;
  const kv::SpillToken token = spill()->token(key);
  const std::optional<kv::SpillFrame> frame = spill()->fetch(key, name_space.name(), get.key);
  if (!frame) return std::nullopt;
  const uint64_t bytes = frame->block.bytes;
  if (get.into.size() < bytes) return too_short(get.key, get.into.size(), bytes);
  if (bytes != 0) std::memcpy(get.into.data(), frame->frame.get(), bytes);
  add(counts_.hits);
  add(counts_.hit_bytes, bytes);
  add(counts_.spill_hits);
  // What was asked for once may never be again; whoever asks for it a second time finds it in the space from then on.
  if (frame->uses != 0) (void)put_back(name_space, get.key, key, *frame, token);
  return bytes;
}

// Whether the space has it now.
template <typename Memory>
bool KvSpaceOf<Memory>::fetch_spilled(const KvNamespace& name_space, std::string_view name,
                                      const kv::BlockKey& key) {
  if (spill() == nullptr) return false;
  const kv::SpillToken token = spill()->token(key);
  const std::optional<kv::SpillFrame> frame = spill()->fetch(key, name_space.name(), name);
  if (!frame || !put_back(name_space, name, key, *frame, token)) return false;
  add(counts_.spill_hits);
  return true;
}

template <typename Memory>
bool KvSpaceOf<Memory>::put_back(const KvNamespace& name_space, std::string_view name, const kv::BlockKey& key,
                                 const kv::SpillFrame& frame, const kv::SpillToken& token) {
  if (options_.ownership == nullptr || !options_.puts || forked()) return false;
  uint64_t waited_ns = 0;
  Result<KvWrite> writing = begin_here(name_space, name, frame.block.bytes, {.wait_ns = 0}, &waited_ns);
  if (!writing.ok()) return writing.error().code == ErrorCode::already_exists;
  Block& block = writing->state_->block;
  block.parent = frame.block.parent;
  block.expires_unix_s = frame.block.expires_unix_s;
  Memory().write(writing->bytes().data(), frame.frame.get(), frame.block.bytes);
  const Status published = writing->publish();
  if (!published.ok()) return published.error().code == ErrorCode::already_exists;
  Memory().full_barrier(Step::none);
  if (spill()->token(key) == token && spill()->look_up(key)) return true;
  Block mine;
  if (reader_.find(own()->part(), key, now_unix_s(), &mine) == Outcome::done) (void)remove_own(mine, false);
  return false;
}

// Of the keys that the space does not have.
template <typename Memory>
Status KvSpaceOf<Memory>::add_spilled(const KvNamespace& name_space, std::span<const std::string_view> keys,
                                      std::span<bool> found) {
  if (spill() == nullptr) return {};
  std::vector<std::string_view> missing;
  std::vector<size_t> places;
  for (size_t index = 0; index < keys.size(); ++index) {
    if (found[index]) continue;
    missing.push_back(keys[index]);
    places.push_back(index);
  }
  if (missing.empty()) return {};
  const auto spilled = std::make_unique<bool[]>(missing.size());
  // A spill that fails has nothing.
  if (!spill()->exists(name_space, missing, {spilled.get(), missing.size()}).ok()) return {};
  for (size_t index = 0; index < missing.size(); ++index) found[places[index]] = spilled[index];
  return {};
}

// Several blocks that are in the spill alone come by as many requests at once.
template <typename Memory>
void KvSpaceOf<Memory>::read_ahead(const KvNamespace& name_space, std::span<const KvGet> gets) {
  if (spill() == nullptr || gets.size() < 2) return;
  const uint64_t seed = kv::namespace_hash(name_space.name());
  std::vector<std::string_view> missing;
  Block block;
  for (const KvGet& one : gets)
    if (check_key(one.key).ok() && find(kv::key_of(seed, one.key), &block) != Outcome::done)
      missing.push_back(one.key);
  if (missing.size() > 1) (void)spill()->prefetch(name_space, missing);
}

// Whether the spill had it; of a spill that fails nobody knows.
template <typename Memory>
bool KvSpaceOf<Memory>::erase_spilled(const KvNamespace& name_space, std::string_view key) {
  return spill() != nullptr && spill()->erase(name_space, key).ok();
}

template <typename Memory>
uint64_t KvSpaceOf<Memory>::flush_spilled(const std::optional<KvNamespace>& name_space) {
  if (spill() == nullptr) return 0;
  const Result<uint64_t> gone = spill()->flush(name_space);
  return gone.ok() ? *gone : 0;
}

}  // namespace terrace
