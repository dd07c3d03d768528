// SPDX-License-Identifier: Apache-2.0
#include "cli/show/preview.h"

#include <algorithm>
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

// "emu:cxl0 at 8 MiB (2 MiB), ...": of a lease in many pieces the first ones.
std::string extents_text(capnp::List<rpc::Extent>::Reader list) {
  constexpr uint32_t shown_max = 3;
  std::string text;
  for (uint32_t i = 0; i < std::min(list.size(), shown_max); ++i) {
    text += (i == 0 ? "" : ", ") + str(list[i].getDevice()) + " at " + exact_size(list[i].getOffset());
    if (list.size() > 1) text += " (" + exact_size(list[i].getLength()) + ")";
  }
  if (list.size() > shown_max) text += ", " + std::to_string(list.size() - shown_max) + " more";
  return or_dash(text);
}

// Of a compaction it matters where on a device: a lease may stay on the same one.
std::string lease_rows(rpc::Preview::Reader preview) {
  std::vector<std::vector<std::string>> rows;
  const bool run = preview.hasRun();
  for (const auto lease : preview.getAll()) {
    std::vector<std::string> row{lease.getLease() == 0 ? "new" : std::to_string(lease.getLease()),
                                 or_dash(str(lease.getLabel())), str(lease.getTenant()),
                                 exact_size(lease.getBytes())};
    if (run) row.push_back(extents_text(lease.getFromExtents()));
    row.push_back(run ? extents_text(lease.getToExtents()) : places(lease.getTo()));
    row.push_back(str(lease.getState()));
    rows.push_back(std::move(row));
  }
  std::vector<std::string> names{"LEASE", "LABEL", "TENANT", "SIZE"};
  if (run) names.push_back("FROM");
  names.insert(names.end(), {"TO", "WHAT BECOMES OF IT"});
  return rows.empty() ? "" : format_table(names, rows);
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
