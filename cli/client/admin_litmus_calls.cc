// SPDX-License-Identifier: Apache-2.0
// The operator's calls about litmus runs: of an extension of Admin, which an older daemon lacks.
#include "cli/client/admin_impl.h"
#include "core/schema/litmus.capnp.h"

namespace terrace::cli {
namespace {

// The numbers are the same; an unknown one was refused with the reply.
litmus::Verdict read_verdict(rpc::LitmusVerdict verdict) {
  static_assert(static_cast<unsigned>(rpc::LitmusVerdict::NOT_COHERENT) ==
                static_cast<unsigned>(litmus::Verdict::not_coherent));
  return static_cast<litmus::Verdict>(verdict);
}

LitmusStatus read_litmus(rpc::Litmus::Reader in) {
  LitmusStatus status;
  status.device = str(in.getDevice());
  status.age_ns = in.getAgeNs();
  status.report.verdict = read_verdict(in.getVerdict());
  status.report.note = str(in.getNote());
  status.report.took_ns = in.getTookNs();
  for (const auto shape : in.getShapes())
    status.report.shapes.push_back({.name = str(shape.getName()),
                                    .rounds = shape.getRounds(),
                                    .met = shape.getMet(),
                                    .forbidden = shape.getForbidden(),
                                    .example = str(shape.getExample()),
                                    .verdict = read_verdict(shape.getVerdict())});
  return status;
}

}  // namespace

Result<LitmusStatus> AdminClient::litmus(const std::string& serial, uint32_t rounds) {
  auto request = impl_->admin.castAs<rpc::LitmusAdmin>().lookAtRequest();
  request.setSerial(serial);
  request.setRounds(rounds);
  return impl_->call(kj::mv(request), [](auto& reply) { return read_litmus(reply.getLitmus()); });
}

Result<std::vector<LitmusStatus>> AdminClient::litmus_runs() {
  return impl_->call(impl_->admin.castAs<rpc::LitmusAdmin>().lookedRequest(), [](auto& reply) {
    std::vector<LitmusStatus> all;
    for (const auto device : reply.getDevices()) all.push_back(read_litmus(device));
    return all;
  });
}

}  // namespace terrace::cli
