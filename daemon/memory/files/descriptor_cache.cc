// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/files/descriptor_cache.h"

#include <fcntl.h>

#include <functional>
#include <utility>

namespace terrace::daemon {

DescriptorCache::Slot& DescriptorCache::slot_of(const std::string& name) {
  return table_[std::hash<std::string>()(name) % slots];
}

void DescriptorCache::put(const std::string& name, Entry entry) {
  Entry replaced;  // closed without the lock: the last close of a file frees its memory
  const MutexLock lock(mutex_);
  Slot& slot = slot_of(name);
  replaced = std::exchange(slot.entry, std::move(entry));
  slot.name = name;
}

DescriptorCache::Entry DescriptorCache::take(const std::string& name) {
  const MutexLock lock(mutex_);
  Slot& slot = slot_of(name);
  if (!slot.entry.fd.valid() || slot.name != name) return {};
  return std::exchange(slot.entry, Entry{});
}

UniqueFd DescriptorCache::share(const std::string& name) {
  const MutexLock lock(mutex_);
  const Slot& slot = slot_of(name);
  if (!slot.entry.fd.valid() || slot.name != name) return {};
  return UniqueFd(::fcntl(slot.entry.fd.get(), F_DUPFD_CLOEXEC, 0));
}

void DescriptorCache::clear() {
  const MutexLock lock(mutex_);
  for (Slot& slot : table_) slot = Slot{};
}

}  // namespace terrace::daemon
