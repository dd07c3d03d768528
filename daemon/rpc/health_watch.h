// SPDX-License-Identifier: Apache-2.0
// Looks after the manager's health: gathers what HealthEngine judges, each few seconds and whenever somebody asks,
// and tells what changes as events.
//
//   engine, state machine, hosts, file system, memdevs -> HealthView -> HealthEngine -> events, Admin.health, Admin.status
//
// It reads counters and walks over devices, pools and hosts; never over leases. What may take time (the state's file
// system, memdevs' mailboxes) is looked at on a worker, and judged as it was found last.
//
// Place     Service owns the one; daemon/role_manager.cc begins it.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/health/health_engine.h"
#include "daemon/model/certificate_end.h"

namespace terrace::daemon {

class Service;

struct HealthWatchOptions {
  HealthLimits limits = {};
  std::string state_file = {};  // whose file system is looked at; empty: none
  bool memdevs = false;         // whether CXL memdevs are asked how they are
};

class HealthWatch final : private kj::TaskSet::ErrorHandler {
 public:
  // `service` outlives it.
  HealthWatch(Service& service, HealthWatchOptions options);
  ~HealthWatch() noexcept;

  // Looks again and again from now on.
  void begin();
  // Looks now.
  const HealthEngine& look();
  // Who knows when clients' certificates end; empty: nobody does.
  void tell_ends_of_clients(std::function<std::vector<CertificateEnd>()> ends) {
    client_ends_ = std::move(ends);
  }

 private:
  void taskFailed(kj::Exception&& exception) override;
  kj::Promise<void> pause();
  kj::Promise<void> look_again();
  kj::Promise<void> look_outside_again();
  kj::Promise<void> look_at_disk();
  kj::Promise<void> look_at_memdevs();
  kj::Promise<void> look_at_kernel();
  void take_lacks();

  HealthView gather() const;
  void gather_pools(HealthView& view) const;
  void gather_work(HealthView& view) const;
  void gather_hosts(HealthView& view) const;
  void gather_programs(HealthView& view) const;

  Service& service_;
  const HealthWatchOptions options_;
  HealthEngine engine_;
  std::function<std::vector<CertificateEnd>()> client_ends_;
  std::optional<HealthView::Disk> disk_;
  std::vector<HealthView::Memdev> memdevs_;
  uint64_t memdevs_asked_ns_ = 0;  // 0: never
  std::vector<HealthView::Lack> lacks_;
  uint64_t kernel_again_ns_ = 0;  // when the machine is looked at next; 0: not decided yet
  uint64_t lacks_seen_ns_ = 0;    // when what is in lacks_ was looked at
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
