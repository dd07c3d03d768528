// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/disk/real_store.h"

#include <cerrno>
#include <utility>

#include "core/base/units.h"
#include "daemon/store/store_options.h"

namespace terrace::sim {
namespace {

SimDisk::Faults faults_of(Environment& environment, const SimStore& rows) {
  const auto error = [&environment] {
    const uint32_t rate = environment.faults().commit_error_per_mille;
    return rate != 0 && environment.prng().chance(rate, 10'000) ? EIO : 0;
  };
  const auto full = [&environment, &rows] {
    return rows.full() || environment.chance_percent(environment.faults().commit_full_percent);
  };
  const auto skips = [&environment] { return environment.planted(Plant::skip_sync); };
  return {error, error, full, skips};
}

bool same(const daemon::Image& a, const daemon::Image& b) {
  return a.meta == b.meta && a.devices == b.devices && a.pools == b.pools && a.leases == b.leases &&
         a.quotas == b.quotas && a.reservations == b.reservations && a.owners == b.owners && a.views == b.views;
}

}  // namespace

RealStore::RealStore(Environment& environment, SimStore& rows, std::function<void(std::function<void()>)> later)
    : environment_(environment),
      rows_(rows),
      later_(std::move(later)),
      disk_(environment.prng(), faults_of(environment, rows)),
      segment_bytes_(environment.prng().between(2, 24) * 4 * kib),
      checkpoint_frames_(static_cast<int>(environment.prng().between(1, 64))) {}

RealStore::~RealStore() {
  disk_.die_after(0);
  opened_.reset();
  store_.reset();
}

Status RealStore::open() {
  daemon::StoreOptions options;
  options.segment_bytes = segment_bytes_;
  options.checkpoint_frames = checkpoint_frames_;
  // What is handed out may come after its store: what a dying process still commits is of the next generation.
  opened_ = std::make_shared<bool>(true);
  options.fold_later = [this, opened = std::weak_ptr<bool>(opened_)](std::function<void()> fold) {
    later_([opened, fold = std::move(fold)] {
      if (!opened.expired()) fold();
    });
  };
  auto store = daemon::open_store(disk_.folder() + "/state", options);
  if (!store.ok()) {
    opened_.reset();
    return store.error();
  }
  store_ = std::move(*store);
  return {};
}

// What a load says to be damaged ends the run (EngineManager::started), unless a sync failed before or power was lost in
// a way that no disk may: there is none.
Result<daemon::Image> RealStore::load() {
  if (store_ == nullptr) TERRACE_RETURN_IF_ERROR(open());
  Result<daemon::Image> image = store_->load();
  if (image.ok() && !disk_.dead()) check(*image);
  if (!image.ok() && image.error().code == ErrorCode::corrupt && !disk_.dead())
    environment_.fail("store: it refuses what it wrote itself: %s", image.error().to_string().c_str());
  return image;
}

void RealStore::check(const daemon::Image& image) {
  if (same(image, rows_.load())) {
    in_doubt_.reset();
    return;
  }
  if (in_doubt_.has_value()) {
    rows_.land(*std::exchange(in_doubt_, std::nullopt));
    if (same(image, rows_.load())) return;
  }
  environment_.fail("store: what it loads is not what it acknowledged");
}

Status RealStore::commit(const daemon::Delta& delta) {
  if (store_ == nullptr)
    return Error{.code = ErrorCode::io_error, .where = "RealStore", .detail = "it is not open"};
  in_doubt_ = delta;
  Status status = store_->commit(delta);
  if (status.ok() && disk_.dead()) return status;  // said to nobody
  if (status.ok()) rows_.land(delta);
  if (status.ok() || status.error().code == ErrorCode::capacity_exhausted) in_doubt_.reset();
  return status;
}

void RealStore::end_process(bool power_lost) {
  disk_.die_after(0);
  opened_.reset();
  store_.reset();
  disk_.restart(power_lost);
}

}  // namespace terrace::sim
