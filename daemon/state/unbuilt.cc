// What has its place in the machine and no body yet.
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

Step unsupported(const char* where) {
  Step step;
  step.reply = Error{.code = ErrorCode::unsupported, .where = where, .detail = "not built yet"};
  return step;
}

}  // namespace

// leases
Step StateMachine::on(const SetQuota&) {
  return unsupported("SetQuota");
}
Step StateMachine::on(const CreateReservation&) {
  return unsupported("CreateReservation");
}
Step StateMachine::on(const RemoveReservation&) {
  return unsupported("RemoveReservation");
}
Step StateMachine::on(const CancelGrant&) {
  return unsupported("CancelGrant");
}
Step StateMachine::on(const Resize&) {
  return unsupported("Resize");
}
Step StateMachine::on(const ResizeFinished&) {
  return unsupported("ResizeFinished");
}
Step StateMachine::on(const Transfer&) {
  return unsupported("Transfer");
}
Step StateMachine::on(const RebindFinished&) {
  return unsupported("RebindFinished");
}
Step StateMachine::on(const BeginMove&) {
  return unsupported("BeginMove");
}
Step StateMachine::on(const FinishMove&) {
  return unsupported("FinishMove");
}
Step StateMachine::on(const ScrubAdvanced&) {
  return unsupported("ScrubAdvanced");
}
QuotaRow StateMachine::quota_of(const std::string& tenant) const {
  return {tenant, 0, 0};
}
Status StateMachine::check_quota(const std::string&, uint64_t, uint64_t) const {
  return {};
}
Status StateMachine::check_reservations(PoolId, const std::string&, uint64_t) const {
  return {};
}
uint64_t StateMachine::unfilled_reservation(PoolId, const std::string&) const {
  return 0;
}
bool StateMachine::has_waiting(PoolId pool) const {
  return queues_.contains(pool);
}
void StateMachine::serve_waiting(PoolId, Step&) {}
void StateMachine::serve_all_waiting(Step&) {}

}  // namespace terrace::daemon
