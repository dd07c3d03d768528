// SPDX-License-Identifier: Apache-2.0
#include "cli/show/preview.h"

#include <nlohmann/json.hpp>

#include "cli/show/describe.h"

namespace terrace::cli {
namespace {

std::string places(capnp::List<rpc::PreviewedPlace>::Reader list) {
  std::string text;
  for (const auto place : list)
    text += (text.empty() ? "" : ", ") + str(place.getDevice()) + " " + exact_size(place.getBytes());
  return or_dash(text);
}

std::string lease_rows(rpc::Preview::Reader preview) {
  std::vector<std::vector<std::string>> rows;
  for (const auto lease : preview.getAll()) {
    rows.push_back({lease.getLease() == 0 ? "new" : std::to_string(lease.getLease()),
                    or_dash(str(lease.getLabel())), str(lease.getTenant()), exact_size(lease.getBytes()),
                    places(lease.getTo()), str(lease.getState())});
  }
  return rows.empty() ? ""
                      : format_table({"LEASE", "LABEL", "TENANT", "SIZE", "TO", "WHAT BECOMES OF IT"}, rows);
}

std::string bound(uint64_t value, const std::string& text) {
  return value == 0 ? "no bound" : text;
}

std::string tenant_rows(rpc::Preview::Reader preview) {
  std::vector<std::vector<std::string>> rows;
  for (const auto tenant : preview.getTenants()) {
    rows.push_back({str(tenant.getTenant()), exact_size(tenant.getBytes()), std::to_string(tenant.getLeases()),
                    bound(tenant.getBytesMax(), exact_size(tenant.getBytesMax())),
                    bound(tenant.getLeasesMax(), std::to_string(tenant.getLeasesMax())),
                    tenant.getOver() ? "yes" : "-"});
  }
  return rows.empty() ? ""
                      : format_table({"TENANT", "BYTES", "LEASES", "MOST BYTES", "MOST LEASES", "OVER"}, rows);
}

std::string preview_text(rpc::Preview::Reader preview) {
  std::string text = "dry run, nothing was done: " + printable(str(preview.getSummary())) + "\n";
  for (const auto note : preview.getNotes()) text += "  " + printable(str(note)) + "\n";
  for (const auto holder : preview.getHolders()) text += "  held by " + printable(str(holder)) + "\n";
  for (const std::string& rows : {lease_rows(preview), tenant_rows(preview)})
    if (!rows.empty()) text += "\n" + rows;
  return text;
}

}  // namespace

void show_preview(Context& context, const PreviewStatus& preview) {
  if (preview->getCode() != 0) {
    const Error error{.code = static_cast<ErrorCode>(preview->getCode()),
                      .where = "dry run",
                      .detail = str(preview->getRefusal())};
    fail_with(context, error, "preview", to_json(preview), preview_text(*preview));
  } else if (context.json) {
    print_json({{"preview", to_json(preview)}});
  } else {
    print_text(preview_text(*preview));
  }
}

}  // namespace terrace::cli
