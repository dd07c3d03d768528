// Mapping: a lease's descriptor as memory, by core/os/persist.
#include "terrace/mapping.h"

#include <utility>

#include "core/os/persist.h"

namespace terrace {
namespace {

class LeaseMapping final : public Mapping {
 public:
  LeaseMapping(std::shared_ptr<Lease> lease, os::FileMap map)
      : lease_(std::move(lease)), map_(std::move(map)) {}

  std::span<std::byte> bytes() override { return map_.writable() ? map_.bytes() : std::span<std::byte>{}; }
  std::span<const std::byte> const_bytes() const override { return map_.bytes(); }
  const std::shared_ptr<Lease>& lease() const override { return lease_; }
  void persist(std::span<const std::byte> range) override { map_.persist(range); }
  const char* store_granularity() const override { return os::store_granularity_name(map_.granularity()); }

 private:
  std::shared_ptr<Lease> lease_;
  os::FileMap map_;
};

}  // namespace

Result<std::unique_ptr<Mapping>> Mapping::map(std::shared_ptr<Lease> lease) {
  constexpr const char* where = "Mapping::map";
  const std::string name = "lease " + std::to_string(lease->id().value);
  if (lease->state() == LeaseState::lost) {
    // A lost lease answers without asking the manager, with the reason why it was lost.
    const auto info = lease->info();
    const ErrorCode code = info.ok() ? ErrorCode::lease_expired : info.error().code;
    return Error{code, 0, where, name + " is lost: its memory is gone"};
  }
  auto map = os::FileMap::map(lease->fd());
  if (!map.ok()) {
    Error error = std::move(map).error();
    error.detail = name + ": " + error.detail;
    if (error.code ==
        ErrorCode::not_found) {  // an object without bytes was fenced, whether we heard of it or not
      const bool revoked = lease->state() == LeaseState::revoking;
      error.code = revoked ? ErrorCode::lease_revoked : ErrorCode::lease_expired;
    }
    return error;
  }
  if (map->bytes().size() < lease->bytes()) {
    return Error{ErrorCode::corrupt, 0, where,
                 name + " has " + std::to_string(lease->bytes()) + " bytes but its object only " +
                     std::to_string(map->bytes().size())};
  }
  return std::unique_ptr<Mapping>(std::make_unique<LeaseMapping>(std::move(lease), std::move(*map)));
}

}  // namespace terrace
