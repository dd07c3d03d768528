// SPDX-License-Identifier: Apache-2.0
// Every kind of memory that this daemon has, as one Backend: devices are those of all kinds together, an object
// goes to the kind that its name begins with (`devdax:lease-7`), or to the emulated one (`lease-7`). One with a
// host in its name (`lease-7@hostb`) goes to that host's agent, whatever its kind.
//
// Place     daemon/machine_memory.cc builds it; the engine sees nothing else.
// Threads   As Backend's; the set itself never changes after the last add().
// Errors    unsupported   an object or device of a kind that this daemon does not have
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/sync/mutex.h"
#include "daemon/memory/backend.h"
#include "daemon/model/kinds.h"

namespace terrace::daemon {

// What backends are told of a manager's rows before they list what there is.
std::vector<KnownDevice> known_devices(const Image& image);
// A lease that is being handed over has its bytes in either of two objects.
std::vector<KnownObject> known_objects(const Image& image);

class RemoteBackend;

class BackendSet final : public Backend, public Composition, public SharedByHosts {
 public:
  // `backend` outlives the set. The first one answers where no device is concerned: describe_memory().
  void add(Backend& backend) { backends_.push_back(&backend); }
  // For the objects of other hosts; has no devices. Hears of all adopted devices.
  void add_remote(RemoteBackend& remote);

  std::string_view kind() const override { return "all"; }
  Composition* composition() override { return this; }
  SharedByHosts* shared_by_hosts() override { return this; }
  std::vector<SeenDevice> discover() override;
  Status refresh() override;
  bool saw_all(std::string_view backend) const override;
  std::vector<SeenDevice> inspect() override;
  bool outlasts_absence(std::string_view backend) const override;
  TierAttributes attributes(const std::string& serial) const override;
  void know_devices(const std::vector<KnownDevice>& devices) override;
  void know_objects(const std::vector<KnownObject>& objects) override;
  Status may_take_over(const std::string& serial) override;
  Status take_over(const std::string& serial) override;
  Result<std::string> create_region(const RegionRequest& request) override;
  Status destroy_region(const std::string& serial) override;
  Result<std::string> online(const std::string& serial) override;
  Status offline(const std::string& serial) override;
  Status claim(const StoreClaim& claim) override;
  Status hand_out(const std::string& name) override;
  Status carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) override;
  Result<UniqueFd> open(const std::string& name, ObjectAccess access) override;
  Status fence(const std::string& name) override;
  Result<uint64_t> scrub(const std::string& name) override;
  bool erases_in_place(std::string_view name) const override;
  Status erase(const std::string& name, const std::vector<Extent>& extents, uint64_t offset,
               uint64_t length) override;
  Status resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                const std::vector<Extent>& extents) override;
  Status rebind(const std::string& from, const std::string& to, uint64_t bytes,
                const std::vector<Extent>& extents) override;
  Status copy(const std::string& from, const std::string& to, uint64_t bytes) override;
  Kept kept(const std::string& name, const std::vector<Extent>& extents) override;
  HoldersEnded end_holders(const std::string& name) override;
  bool is_shared(std::string_view name) const override;
  Result<Nonce> exchange(const std::string& name, const std::vector<Extent>& extents,
                         const Nonce& put) override;
  Status clean(const std::string& name, const std::vector<Extent>& extents) override;
  Status write_back(const std::string& name, const std::vector<Extent>& extents) override;
  Status show(const std::string& view, const std::string& of, uint64_t bytes,
              const std::vector<Extent>& extents) override;
  bool take_unwritten(const std::string& name) override;
  Result<Hidden> hide(const std::string& view, const std::vector<Extent>& extents) override;
  std::vector<std::string> dax_regions() const override;
  bool quick(std::string_view name, uint64_t bytes) const override;
  Result<std::vector<ObservedObject>> list() override;
  Result<ObservedObject> usage(const std::string& name) override;
  std::string describe_memory() const override;
  bool huge_pages(std::string_view name) const override;

 private:
  Backend* of_object(std::string_view name) const;
  Backend* of_device(const std::string& serial) const;
  Error no_such_kind(std::string_view name) const;
  Status hand_across(const std::string& from, const std::string& to, uint64_t bytes,
                     const std::vector<Extent>& extents);

  std::vector<Backend*> backends_;
  RemoteBackend* remote_ = nullptr;
  mutable Mutex mutex_;
  std::set<std::string, std::less<>> unseen_
      TERRACE_GUARDED_BY(mutex_);  // kinds that the last refresh() could not look at
};

}  // namespace terrace::daemon
