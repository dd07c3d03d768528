// SPDX-License-Identifier: Apache-2.0
// The operator's calls that change nothing and say what a change would do.
#include "cli/client/admin_impl.h"

namespace terrace::cli {
namespace {

PreviewStatus kept_preview(rpc::Admin::PreviewResults::Reader reply) {
  return PreviewStatus(reply.getPreview());
}

}  // namespace

Result<PreviewStatus> AdminClient::preview_grant(const GrantOptions& options) {
  auto request = impl_->admin.previewRequest();
  auto grant = request.initAct().initGrant();
  const LeaseRequest& wanted = options.request;
  grant.setPool(wanted.pool);
  grant.setTenant(options.tenant);
  grant.setBytes(wanted.bytes);
  grant.setMode(static_cast<rpc::LeaseMode>(wanted.mode));  // the same numbers
  grant.setTtlNs(wanted.ttl_ns);
  grant.setPersistent(wanted.persistent);
  grant.setLabel(wanted.label);
  grant.setMovable(wanted.movable);
  grant.setOnFence(static_cast<rpc::OnFence>(wanted.on_fence));
  grant.setWaitNs(wanted.wait_ns);
  return impl_->call(kj::mv(request), [](auto& reply) { return kept_preview(reply); });
}

Result<PreviewStatus> AdminClient::preview_revoke(LeaseId id, const RevokeOptions& options) {
  auto request = impl_->admin.previewRequest();
  auto revoke = request.initAct().initRevoke();
  revoke.setLease(id.value);
  revoke.setGraceNs(options.grace_ns);
  revoke.setReason(options.reason);
  return impl_->call(kj::mv(request), [](auto& reply) { return kept_preview(reply); });
}

Result<PreviewStatus> AdminClient::preview_drain(const std::string& serial) {
  auto request = impl_->admin.previewRequest();
  request.initAct().initDrain().setSerial(serial);
  return impl_->call(kj::mv(request), [](auto& reply) { return kept_preview(reply); });
}

Result<PreviewStatus> AdminClient::preview_compaction(const std::string& pool, uint64_t run_bytes) {
  auto request = impl_->admin.previewRequest();
  auto compact = request.initAct().initCompact();
  compact.setPool(pool);
  compact.setRunBytes(run_bytes);
  return impl_->call(kj::mv(request), [](auto& reply) { return kept_preview(reply); });
}

Result<PreviewStatus> AdminClient::preview_quota(const QuotaStatus& quota) {
  auto request = impl_->admin.previewRequest();
  auto wanted = request.initAct().initSetQuota();
  wanted.setTenant(quota->getTenant());
  wanted.setBytesMax(quota->getBytesMax());
  wanted.setLeasesMax(quota->getLeasesMax());
  return impl_->call(kj::mv(request), [](auto& reply) { return kept_preview(reply); });
}

}  // namespace terrace::cli
