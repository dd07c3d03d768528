// SPDX-License-Identifier: Apache-2.0
// FakeGateway: one lease as a capability, and a move of it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "core/base/check.h"
#include "core/base/units.h"
#include "tests/support/fake_gateway_rpc.h"

namespace terrace::test {

UniqueFd make_memory(uint64_t bytes) {
  UniqueFd file(::memfd_create("fake_lease", MFD_CLOEXEC));
  TERRACE_CHECK(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0, "no memory file");
  return file;
}

void fence_memory(const UniqueFd& file) {
  if (file.valid()) TERRACE_CHECK(::ftruncate(file.get(), 0) == 0, "cannot fence in a test");
}

UniqueFd copy_memory(const UniqueFd& from, uint64_t bytes) {
  UniqueFd file = make_memory(bytes);
  std::vector<char> chunk(mib);
  for (uint64_t at = 0; at < bytes; at += chunk.size()) {
    const ssize_t got = ::pread(from.get(), chunk.data(), chunk.size(), static_cast<off_t>(at));
    if (got <= 0) break;
    TERRACE_CHECK(::pwrite(file.get(), chunk.data(), static_cast<size_t>(got), static_cast<off_t>(at)) == got,
                  "cannot copy in a test");
  }
  return file;
}

int open_fake_memory(const UniqueFd& file, rpc::Access access) {
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  return ::open(path.c_str(), (access == rpc::Access::READ_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
}

void set_fake_error(rpc::Error::Builder wire, ErrorCode code, const std::string& detail) {
  wire.setCode(static_cast<uint16_t>(code));
  wire.setWhere("FakeGateway");
  wire.setDetail(detail);
}

void fill_fake_lease(const FakeLease& lease, rpc::LeaseInfo::Builder wire) {
  wire.setId(lease.id);
  wire.setPool("pool");
  wire.setTenant(lease.tenant);
  wire.setHost(lease.host);
  wire.setLabel(lease.label);
  wire.setBytes(lease.bytes);
  wire.setEpoch(lease.epoch);
  wire.setPhase(lease.phase == "revoking" ? rpc::LeasePhase::REVOKING : rpc::LeasePhase::ACTIVE);
  wire.setReason(lease.reason);
  wire.setMovable(lease.movable);
  wire.setHolders(lease.holders);
  wire.setTtlNs(lease.ttl_ns);
  wire.setExpiresInNs(lease.ttl_ns);
  wire.setGranuleBytes(2 * mib);
  wire.setTier("cxl");
  wire.setIsolation("kernel");
  auto extent = wire.initExtents(1)[0];
  extent.setDevice("emu:fake");
  extent.setLength(lease.bytes);
  wire.initUsage().setHolder(lease.holder);
  wire.getUsage().setDdrBytes(lease.ddr_bytes);
  wire.getUsage().setReportedNs(lease.holder.empty() ? 0 : 1);
}

namespace {

class LeaseServer final : public rpc::Lease::Server {
 public:
  LeaseServer(kj::Own<Link> link, uint64_t id, int fd) : link_(kj::mv(link)), id_(id), fd_(fd) {}

  kj::Maybe<int> getFd() override {
    if (fd_.valid()) return fd_.get();
    return nullptr;
  }
  kj::Promise<void> info(InfoContext context) override {
    return link_->perform("info", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      with(results, [&](StoredLease& stored) { fill_fake_lease(stored.lease, results.initInfo()); });
    });
  }
  kj::Promise<void> renew(RenewContext context) override {
    return link_->perform("renew", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      with(results, [&](StoredLease& stored) {
        if (context.getParams().getTtlNs() != 0) stored.lease.ttl_ns = context.getParams().getTtlNs();
        ++stored.lease.renewals;
        results.setExpiresInNs(stored.lease.ttl_ns);
      });
    });
  }
  kj::Promise<void> release(ReleaseContext context) override {
    return link_->perform("release", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      bool gone = false;
      with(results, [&](StoredLease& stored) {
        fence_memory(stored.file);
        gone = true;
      });
      const std::lock_guard lock(link_->state->mutex);
      if (gone) link_->state->leases.erase(id_);
    });
  }
  kj::Promise<void> reportUsage(ReportUsageContext context) override {
    return link_->perform("reportUsage", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      with(results, [&](StoredLease& stored) {
        stored.lease.holder = context.getParams().getUsage().getHolder();
        stored.lease.ddr_bytes = context.getParams().getUsage().getDdrBytes();
      });
    });
  }

  kj::Promise<void> resize(ResizeContext context) override {
    return link_->perform("resize", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      with(results, [&](StoredLease& stored) {
        stored.lease.bytes = round_up(context.getParams().getBytes(), 2 * mib);
        if (link_->state->new_file_on_resize) {
          UniqueFd file = copy_memory(stored.file, stored.lease.bytes);
          fence_memory(stored.file);
          stored.file = std::move(file);
        }
        TERRACE_CHECK(::ftruncate(stored.file.get(), static_cast<off_t>(stored.lease.bytes)) == 0, "resize");
        hand_over(stored, results);
      });
    });
  }
  kj::Promise<void> transfer(TransferContext context) override {
    return link_->perform("transfer", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      with(results, [&](StoredLease& stored) {
        UniqueFd file = copy_memory(stored.file, stored.lease.bytes);
        fence_memory(stored.file);
        stored.file = std::move(file);
        stored.lease.tenant = context.getParams().getTenant();
        stored.lease.host = context.getParams().getHost();
        stored.lease.epoch = link_->state->next_epoch++;
        fill_fake_lease(stored.lease, results.initInfo());
      });
    });
  }
  kj::Promise<void> releasePart(ReleasePartContext context) override {
    return link_->perform("releasePart", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      with(results, [](StoredLease&) {});
    });
  }
  kj::Promise<void> beginMove(BeginMoveContext context) override;

 private:
  template <typename Results>
  void hand_over(const StoredLease& stored, Results& results) {
    fill_fake_lease(stored.lease, results.initInfo());
    results.setLease(make_fake_lease_capability(kj::addRef(*link_), id_,
                                                open_fake_memory(stored.file, rpc::Access::READ_WRITE)));
  }
  template <typename Results, typename Use>
  void with(Results& results, Use use) {
    const std::lock_guard lock(link_->state->mutex);
    const auto found = link_->state->leases.find(id_);
    if (found == link_->state->leases.end() || found->second.lease.tenant != "tester") {
      set_fake_error(results.initError(), ErrorCode::not_found, "there is no lease " + std::to_string(id_));
    } else {
      use(found->second);
    }
  }

  kj::Own<Link> link_;
  uint64_t id_;
  UniqueFd fd_;
};

// A move under way. Dropped undecided it is given up, as the schema says: the new memory is fenced.
class MoveServer final : public rpc::LeaseMove::Server {
 public:
  MoveServer(kj::Own<Link> link, uint64_t lease, uint64_t move, int fd)
      : link_(kj::mv(link)), lease_(lease), move_(move), fd_(fd) {}
  ~MoveServer() noexcept(false) {
    const std::lock_guard lock(link_->state->mutex);
    give_up();
  }

  kj::Maybe<int> getFd() override {
    if (fd_.valid()) return fd_.get();
    return nullptr;
  }
  kj::Promise<void> commit(CommitContext context) override {
    context.allowCancellation();  // or a commit that hangs would keep the move alive after its connection
    return link_->perform("commit", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      const std::lock_guard lock(link_->state->mutex);
      const auto found = link_->state->leases.find(lease_);
      if (found == link_->state->leases.end() || found->second.target_move != move_) {
        set_fake_error(results.initError(), ErrorCode::not_found, "there is no such move");
        return;
      }
      StoredLease& stored = found->second;
      fence_memory(stored.file);
      stored.file = std::move(stored.target);
      stored.target_move = 0;
      stored.lease.epoch = link_->state->next_epoch++;
      ++stored.lease.moves;
      fill_fake_lease(stored.lease, results.initInfo());
      results.setLease(make_fake_lease_capability(kj::addRef(*link_), lease_,
                                                  open_fake_memory(stored.file, rpc::Access::READ_WRITE)));
    });
  }
  kj::Promise<void> abandon(AbandonContext context) override {
    return link_->perform("abandon", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      const std::lock_guard lock(link_->state->mutex);
      give_up();
    });
  }

 private:
  void give_up() {
    const auto found = link_->state->leases.find(lease_);
    if (found == link_->state->leases.end() || found->second.target_move != move_) return;
    fence_memory(found->second.target);
    found->second.target.reset();
    found->second.target_move = 0;
    ++found->second.lease.moves_given_up;
  }

  kj::Own<Link> link_;
  uint64_t lease_, move_;
  UniqueFd fd_;
};

kj::Promise<void> LeaseServer::beginMove(BeginMoveContext context) {
  return link_->perform("beginMove", [&](auto fault) {
    auto results = context.getResults();
    if (link_->refused(fault, results)) return;
    with(results, [&](StoredLease& stored) {
      if (stored.target_move != 0) {
        set_fake_error(results.initError(), ErrorCode::busy, "a move is under way");
        return;
      }
      stored.target = make_memory(stored.lease.bytes);
      stored.target_move = link_->state->next_move++;
      const int fd =
          fault == Fault::no_descriptor ? -1 : open_fake_memory(stored.target, rpc::Access::READ_WRITE);
      results.setBytes(stored.lease.bytes);
      results.setMove(kj::heap<MoveServer>(kj::addRef(*link_), id_, stored.target_move, fd));
    });
  });
}

}  // namespace

rpc::Lease::Client make_fake_lease_capability(kj::Own<Link> link, uint64_t id, int fd) {
  return kj::heap<LeaseServer>(kj::mv(link), id, fd);
}

}  // namespace terrace::test
