// SPDX-License-Identifier: Apache-2.0
// The operator's interface: what an act would do. daemon/state/preview does it to a copy of the state, in a snapshot of
// the process, so that nobody else waits for that.
#include <capnp/serialize.h>

#include <cstring>
#include <functional>

#include "daemon/rpc/admin/admin.h"
#include "daemon/rpc/ended_holders.h"
#include "daemon/state/preview/preview.h"

namespace terrace::daemon {
namespace {

using Work = std::function<Preview(const StateMachine&)>;
using Found = SnapshotProcess::Found;

// A picture of an act, not a list to go through: `terrace lease list` is that.
constexpr size_t rows_max = 1000;

void write_places(capnp::List<rpc::PreviewedPlace>::Builder out,
                  const std::map<std::string, uint64_t>& places) {
  uint32_t i = 0;
  for (const auto& [serial, bytes] : places) {
    out[i].setDevice(serial);
    out[i++].setBytes(bytes);
  }
}

void write_extent(rpc::Extent::Builder out, const PlacedExtent& extent) {
  out.setDevice(extent.device);
  out.setOffset(extent.offset);
  out.setLength(extent.length);
}

void write_extents(capnp::List<rpc::Extent>::Builder out, const std::vector<PlacedExtent>& extents) {
  for (uint32_t i = 0; i < extents.size(); ++i) write_extent(out[i], extents[i]);
}

void write_lease(rpc::PreviewedLease::Builder out, const PreviewedLease& one) {
  out.setLease(one.lease.value);
  out.setTenant(one.tenant);
  out.setHost(one.host);
  out.setLabel(one.label);
  out.setBytes(one.bytes);
  write_places(out.initTo(static_cast<uint32_t>(one.to.size())), one.to);
  out.setState(one.state);
  out.setBlocked(one.blocked);
  write_extents(out.initFromExtents(static_cast<uint32_t>(one.from_extents.size())), one.from_extents);
  write_extents(out.initToExtents(static_cast<uint32_t>(one.to_extents.size())), one.to_extents);
}

void write_preview(rpc::Preview::Builder out, const Preview& preview) {
  out.setSummary(preview.summary);
  if (!preview.outcome.ok()) {
    const Error& error = preview.outcome.error();
    out.setRefusal(error.detail);
    out.setCode(static_cast<uint16_t>(error.code));
    out.setCodeName(std::string(error_code_name(error.code)));
  }
  auto notes = out.initNotes(static_cast<uint32_t>(preview.notes.size()));
  for (uint32_t i = 0; i < notes.size(); ++i) notes.set(i, preview.notes[i]);
  out.setLeases(static_cast<uint32_t>(preview.leases));
  out.setBytes(preview.bytes);
  out.setBlockedLeases(static_cast<uint32_t>(preview.blocked_leases));
  out.setBlockedBytes(preview.blocked_bytes);
  write_places(out.initTo(static_cast<uint32_t>(preview.to.size())), preview.to);
  auto leases = out.initAll(static_cast<uint32_t>(std::min(preview.all.size(), rows_max)));
  for (uint32_t i = 0; i < leases.size(); ++i) write_lease(leases[i], preview.all[i]);
  auto tenants = out.initTenants(static_cast<uint32_t>(std::min(preview.tenants.size(), rows_max)));
  for (uint32_t i = 0; i < tenants.size(); ++i) {
    const PreviewedTenant& one = preview.tenants[i];
    tenants[i].setTenant(one.tenant);
    tenants[i].setBytes(one.bytes);
    tenants[i].setLeases(one.leases);
    tenants[i].setBytesMax(one.bytes_max);
    tenants[i].setLeasesMax(one.leases_max);
    tenants[i].setOver(one.over);
  }
  out.setWouldWait(preview.would_wait);
  out.setWaitingBefore(static_cast<uint32_t>(preview.waiting_before));
  if (preview.run.has_value()) write_extent(out.initRun(), *preview.run);
}

// A message's words, for the way out of the snapshot.
std::string packed(const Preview& preview) {
  capnp::MallocMessageBuilder message;
  write_preview(message.initRoot<rpc::Preview>(), preview);
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  return std::string(words.asChars().begin(), words.asChars().size());
}

void set_preview(rpc::Admin::PreviewResults::Builder results, const std::string& bytes) {
  auto words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.begin(), bytes.data(), words.asBytes().size());
  capnp::FlatArrayMessageReader reader(words);
  results.setPreview(reader.getRoot<rpc::Preview>());
}

std::vector<std::string> names_of(const std::vector<HolderListener*>& holders) {
  std::vector<std::string> names;
  for (const HolderListener* holder : holders) names.push_back(holder->describe());
  return names;
}

}  // namespace

kj::Promise<void> AdminServer::preview(PreviewContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    const auto act = context.getParams().getAct();
    kj::Promise<std::set<LeaseId>> unheld = std::set<LeaseId>();
    std::function<Work(const std::set<LeaseId>&)> make_work;
    LeaseId of_lease;
    switch (act.which()) {
      case rpc::PreviewedAct::GRANT: {
        Result<Grant> command = read_grant(act.getGrant());
        if (!command.ok()) {
          refuse(context, command.error());
          return kj::READY_NOW;
        }
        make_work = [command = std::move(command).value()](const std::set<LeaseId>&) -> Work {
          return [command](const StateMachine& state) { return preview_grant(state.copy(), command); };
        };
        break;
      }
      case rpc::PreviewedAct::REVOKE: {
        of_lease = LeaseId{act.getRevoke().getLease()};
        const Revoke command{of_lease, read_text(act.getRevoke().getReason()), act.getRevoke().getGraceNs(),
                             now_ns()};
        if (command.grace_ns != 0 && command.grace_ns <= limits::grace_ns_max)
          unheld = service().ended_holders().nobody_has({of_lease});  // as revoke() does
        make_work = [this, command](const std::set<LeaseId>& nobodys) -> Work {
          Revoke now = command;
          if (nobodys.contains(now.lease)) now.grace_ns = 0;
          return [now, holders = service().holders(now.lease)](const StateMachine& state) {
            return preview_revoke(state.copy(), now, holders);
          };
        };
        break;
      }
      case rpc::PreviewedAct::RELEASE:
        of_lease = LeaseId{act.getRelease().getLease()};
        make_work = [this, command = Release{of_lease, "", now_ns()}](const std::set<LeaseId>&) -> Work {
          return [command, holders = service().holders(command.lease)](const StateMachine& state) {
            return preview_release(state.copy(), command, holders);
          };
        };
        break;
      case rpc::PreviewedAct::DRAIN:
        make_work = [this, serial = read_text(act.getDrain().getSerial()),
                     now = now_ns()](const std::set<LeaseId>&) -> Work {
          return [serial, now, &all = service()](const StateMachine& state) {
            return preview_drain(state.copy(), serial, now, [&all](LeaseId id) { return all.holders(id); });
          };
        };
        break;
      case rpc::PreviewedAct::SET_QUOTA: {
        const auto quota = act.getSetQuota();
        const SetQuota command{{read_text(quota.getTenant()), quota.getBytesMax(), quota.getLeasesMax()},
                               now_ns()};
        make_work = [command](const std::set<LeaseId>&) -> Work {
          return [command](const StateMachine& state) { return preview_quota(state.copy(), command); };
        };
        break;
      }
      case rpc::PreviewedAct::COMPACT: {
        const auto compact = act.getCompact();
        const CompactPool command{read_text(compact.getPool()), compact.getRunBytes(),
                                  now_ns() + limits::compaction_ns_max, now_ns()};
        make_work = [this, command](const std::set<LeaseId>&) -> Work {
          return [command, &all = service()](const StateMachine& state) {
            return preview_compaction(state.copy(), command, [&all](LeaseId id) { return all.holders(id); });
          };
        };
        break;
      }
      default:
        refuse(context,
               Error{.code = ErrorCode::invalid_argument,
                     .where = "preview",
                     .detail = "no act is named; there are grant, revoke, release, drain, set_quota, compact"});
        return kj::READY_NOW;
    }
    return unheld
        .then([this, make_work = std::move(make_work)](const std::set<LeaseId>& nobodys) {
          return service().previews().turn().then(
              [this, work = make_work(nobodys)](kj::Own<OneAtATime::Turn> turn) {
                return engine()
                    .run_on_snapshot([&engine = engine(), work] { return Found{packed(work(engine.state()))}; },
                                     nullptr)
                    .attach(kj::mv(turn));
              });
        })
        .then([this, context, of_lease](Result<Found> found) mutable {
          if (!found.ok()) return refuse(context, found.error());
          set_preview(context.getResults(), found->front());
          if (!of_lease.valid()) return;
          const std::vector<std::string> names = names_of(service().holders().of(of_lease));
          auto holders = context.getResults().getPreview().initHolders(static_cast<uint32_t>(names.size()));
          for (uint32_t i = 0; i < holders.size(); ++i) holders.set(i, names[i]);
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
