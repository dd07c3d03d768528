// SPDX-License-Identifier: Apache-2.0
// The operator's interface: litmus runs of devices (core/schema/litmus.capnp).
#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

rpc::LitmusVerdict wire_verdict(litmus::Verdict verdict) {
  switch (verdict) {
    case litmus::Verdict::coherent: return rpc::LitmusVerdict::COHERENT;
    case litmus::Verdict::not_coherent: return rpc::LitmusVerdict::NOT_COHERENT;
    case litmus::Verdict::inconclusive: break;
  }
  return rpc::LitmusVerdict::INCONCLUSIVE;
}

void write_litmus(rpc::Litmus::Builder out, const std::string& serial, const litmus::Report& report,
                  uint64_t age_ns) {
  out.setDevice(serial);
  out.setVerdict(wire_verdict(report.verdict));
  out.setTookNs(report.took_ns);
  out.setAgeNs(age_ns);
  out.setNote(report.note);
  auto shapes = out.initShapes(static_cast<uint32_t>(report.shapes.size()));
  for (uint32_t i = 0; i < shapes.size(); ++i) {
    const litmus::ShapeResult& shape = report.shapes[i];
    shapes[i].setName(shape.name);
    shapes[i].setRounds(shape.rounds);
    shapes[i].setMet(shape.met);
    shapes[i].setForbidden(shape.forbidden);
    shapes[i].setExample(shape.example);
    shapes[i].setVerdict(wire_verdict(shape.verdict));
  }
}

}  // namespace

kj::Promise<void> AdminServer::lookAt(LookAtContext context) {
  const auto params = context.getParams();
  const std::string serial = read_text(params.getSerial());
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    return service()
        .litmus_runs()
        .run(serial, params.getRounds(), connection_->caller())
        .then([context, serial](Result<litmus::Report> report) mutable {
          if (!report.ok()) {
            refuse(context, report.error());
          } else {
            write_litmus(context.getResults().initLitmus(), serial, *report, 0);
          }
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

kj::Promise<void> AdminServer::looked(LookedContext context) {
  return query(context, [this](LookedContext& c) {
    std::vector<const std::pair<const std::string, LitmusRuns::Last>*> adopted;
    for (const auto& entry : service().litmus_runs().last())
      if (state().find_device(entry.first) != nullptr) adopted.push_back(&entry);
    auto out = c.getResults().initDevices(static_cast<uint32_t>(adopted.size()));
    for (uint32_t i = 0; i < out.size(); ++i)
      write_litmus(out[i], adopted[i]->first, adopted[i]->second.report,
                   now_ns() - adopted[i]->second.ended_ns);
  });
}

}  // namespace terrace::daemon
