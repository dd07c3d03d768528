// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/region/region.h"

#include <algorithm>
#include <cerrno>

#include "core/base/failpoint.h"
#include "core/base/units.h"
#include "daemon/inventory/serials.h"
#include "daemon/memory/region/region_plan.h"
#include "daemon/memory/uuid_text.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "RegionMaker";

std::string serial_of(const CxlRegion& region) {
  return inventory::region_serial(region.ram ? inventory::RegionKind::ram : inventory::RegionKind::pmem,
                                  region.memdevs, region.position_bytes);
}

bool whole(const CxlRegion& region) {
  return region.committed && region.enabled && !region.memdevs.empty() &&
         std::none_of(region.memdevs.begin(), region.memdevs.end(),
                      [](const std::string& one) { return one.empty(); });
}

bool bare(const CxlRegion& region) {
  return !region.committed && !region.enabled &&
         std::all_of(region.memdevs.begin(), region.memdevs.end(),
                     [](const std::string& one) { return one.empty(); });
}

// What a crash left of the region that the record speaks of. A persistent one bears its uuid before anything
// else is done to it; a volatile one has none, and is known by its memdevs while it decodes nothing. Before
// that it is an empty region of the same window, whoever made that: nothing can be lost with it. What serves
// somebody is left alone, unless it is ours and nobody was told of it yet.
bool left_of(const CxlRegion& region, const RegionRecord& record) {
  if (!record.uuid.empty() && region.uuid == record.uuid) return !record.made || !region.enabled;
  if (bare(region)) return region.root == record.root && region.bytes == 0;
  return record.ram && region.ram && !region.enabled && !region.committed &&
         std::all_of(region.memdevs.begin(), region.memdevs.end(), [&](const auto& one) {
           return one.empty() ||
                  std::find(record.memdevs.begin(), record.memdevs.end(), one) != record.memdevs.end();
         });
}

Error failed_at(int code, const char* what) {
  return os_error(code, where, what);
}

Error not_all_seen(const CxlView& view) {
  return os_error(EAGAIN, where, view.unseen + " is there, but could not be looked at; try again");
}

// The kernel puts each region behind those that are there.
Error displaced(const RegionRecord& record, const CxlRegion& now) {
  return Error{.code = ErrorCode::io_error,
               .where = where,
               .detail = "it began " + format_size(record.position_bytes) +
                         " into its memdevs, and would begin " + format_size(now.position_bytes) +
                         " into them now, where other bytes lie; make the region that lay before it first"};
}

Error not_tried(Error why) {
  why.detail =
      "it was made again, but could not be tried yet; leases on it go on, and nothing new is granted "
      "there meanwhile: " +
      why.detail;
  return why;
}

}  // namespace

Result<std::vector<MadeRegion>> RegionMaker::regions(std::string* unseen) {
  TERRACE_ASSIGN_OR_RETURN(const CxlView view, kernel_.look());
  if (unseen != nullptr) *unseen = view.unseen;
  std::vector<MadeRegion> made;
  for (const CxlRegion& region : view.regions) {
    if (!whole(region)) continue;
    made.push_back(
        {serial_of(region), region.ram, region.start, region.bytes, region.memdevs, region.granularity});
  }
  return made;
}

// --- made -------------------------------------------------------------------------------------------------

Status RegionMaker::check_unrecorded(const RegionRequest& request,
                                     const std::vector<RegionRecord>& records) const {
  for (const RegionRecord& record : records)
    for (const std::string& memdev : request.memdevs)
      if (std::find(record.memdevs.begin(), record.memdevs.end(), memdev) != record.memdevs.end()) {
        return Error{.code = ErrorCode::busy,
                     .where = where,
                     .detail = "memdev " + memdev + " belongs to region " + record.serial +
                               ", which is on record; `terrace region destroy " + record.serial +
                               "` takes it apart or forgets it"};
      }
  return {};
}

Result<std::string> RegionMaker::create(const RegionRequest& request, const Probe& probe) {
  TERRACE_ASSIGN_OR_RETURN(const CxlView view, kernel_.look());
  TERRACE_ASSIGN_OR_RETURN(const RegionPlan plan, plan_region(request, view));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<RegionRecord> records, records_.read());
  TERRACE_RETURN_IF_ERROR(check_unrecorded(request, records));
  TERRACE_ASSIGN_OR_RETURN(const UuidBytes uuid, random_uuid());
  Status first;
  for (const RegionAttempt& attempt : plan.attempts) {
    RegionRecord record;
    record.memdevs = attempt.order;
    record.ram = plan.ram;
    record.serial = inventory::region_serial(
        plan.ram ? inventory::RegionKind::ram : inventory::RegionKind::pmem, attempt.order);
    record.granularity = attempt.granularity;
    record.bytes = plan.bytes;
    record.uuid = plan.ram ? "" : uuid_text(uuid.data());
    record.root = attempt.root;
    std::vector<RegionRecord> with = records;
    with.push_back(record);
    TERRACE_RETURN_IF_ERROR(records_.write(with));
    bool refused = false;
    Status status;
    if (const int code = TERRACE_FAILPOINT(region_after_record); code != 0) {
      status = failed_at(code, "the region was on record, and not made");
    } else {
      status = make(record, attempt.root, probe, false, refused);
    }
    if (status.ok()) {
      with.back() = record;
      with.back().made = true;
      status = records_.write(with);
      if (status.ok()) return record.serial;
      if (auto now = kernel_.look(); now.ok())  // what the next start would take apart
        for (const CxlRegion& region : now->regions)
          if (left_of(region, record)) (void)kernel_.remove(region.name);
    }
    if (first.ok()) first = status;
    if (!refused) break;
  }
  TERRACE_RETURN_IF_ERROR(records_.write(records));
  return explain_refusal(first.error(), request, view);
}

Status RegionMaker::make(RegionRecord& record, const std::string& root, const Probe& probe, bool again,
                         bool& refused) {
  refused = true;
  auto name = kernel_.create(root, record.ram);
  if (!name.ok()) return std::move(name).error();
  Status status;
  if (const int code = TERRACE_FAILPOINT(region_after_create); code != 0) {
    status = failed_at(code, "the region was created, and not finished");
    refused = false;
  } else {
    status = build(record, *name, refused);
  }
  if (status.ok()) {
    auto view = kernel_.look();
    if (view.ok() && !view->unseen.empty()) view = not_all_seen(*view);
    const auto made = view.ok() ? verify(record, *view, *name, again) : Result<CxlRegion>(view.error());
    if (made.ok() && !again) {
      record.position_bytes = made->position_bytes;
      record.serial = serial_of(*made);
    }
    const Probed probed = made.ok()   ? probe(*made)
                          : view.ok() ? Probed(made.error())
                                      : Probed::untried(made.error());
    status = probed.status;
    if (!status.ok() && !probed.tried && again) {
      untried_.insert(record.serial);
      refused = false;
      return not_tried(status.error());
    }
  }
  if (status.ok()) {
    untried_.erase(record.serial);
    return {};
  }
  Error error = status.error();
  if (const Status removed = kernel_.remove(*name); !removed.ok()) {
    refused = false;  // its memdevs are not free for another attempt
    error.detail += "; and what was made of it stays: " + removed.error().detail;
  }
  return error;
}

Status RegionMaker::build(const RegionRecord& record, const std::string& region, bool& refused) {
  const auto ways = static_cast<unsigned>(record.memdevs.size());
  TERRACE_RETURN_IF_ERROR(kernel_.shape(region, {record.uuid, ways, record.granularity, record.bytes}));
  for (unsigned position = 0; position < ways; ++position)
    TERRACE_RETURN_IF_ERROR(kernel_.attach(region, position, record.memdevs[position], record.bytes / ways));
  TERRACE_RETURN_IF_ERROR(kernel_.commit(region));
  refused = false;
  if (const int code = TERRACE_FAILPOINT(region_after_commit); code != 0)
    return failed_at(code, "the region was committed, and not enabled");
  return kernel_.enable(region);
}

Result<CxlRegion> RegionMaker::verify(const RegionRecord& record, const CxlView& view,
                                      const std::string& region, bool again) const {
  for (const CxlRegion& one : view.regions) {
    if (one.name != region) continue;
    if (!whole(one) || one.memdevs != record.memdevs || one.bytes != record.bytes) break;
    if (again && one.position_bytes != record.position_bytes) return displaced(record, one);
    return one;
  }
  return Error{
      .code = ErrorCode::io_error,
      .where = where,
      .detail = "the kernel reported no error, but " + region + " is not the region that was asked for"};
}

// --- taken apart --------------------------------------------------------------------------------------------

Status RegionMaker::forget(std::vector<RegionRecord> records, const std::string& serial) {
  const auto removed = std::erase_if(records, [&](const RegionRecord& one) { return one.serial == serial; });
  return removed == 0 ? Status() : records_.write(records);
}

Status RegionMaker::destroy(const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<RegionRecord> records, records_.read());
  TERRACE_ASSIGN_OR_RETURN(const CxlView view, kernel_.look());
  const bool recorded = std::any_of(records.begin(), records.end(),
                                    [&](const RegionRecord& one) { return one.serial == serial; });
  const auto region = std::find_if(view.regions.begin(), view.regions.end(), [&](const CxlRegion& one) {
    return whole(one) && serial_of(one) == serial;
  });
  if (region == view.regions.end() && !view.unseen.empty()) return not_all_seen(view);
  if (region == view.regions.end() && !recorded) {
    return Error{.code = ErrorCode::not_found,
                 .where = where,
                 .detail = "there is no region " + serial + "; `terrace region list` shows those there are"};
  }
  untried_.erase(serial);
  // Forgotten first: a start in between must not make it again.
  TERRACE_RETURN_IF_ERROR(forget(records, serial));
  if (region == view.regions.end()) return {};
  const Status removed = kernel_.remove(region->name);
  if (removed.ok() || !recorded) return removed;
  TERRACE_RETURN_IF_ERROR(records_.write(records));
  return removed;
}

// --- remembered ---------------------------------------------------------------------------------------------

Status RegionMaker::remember(const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<RegionRecord> records, records_.read());
  for (const RegionRecord& record : records)
    if (record.serial == serial) return {};
  TERRACE_ASSIGN_OR_RETURN(const CxlView view, kernel_.look());
  for (const CxlRegion& region : view.regions) {
    if (!whole(region) || serial_of(region) != serial) continue;
    records.push_back({serial, region.memdevs, region.ram, region.granularity, region.bytes,
                       region.ram ? "" : region.uuid, region.root, true, region.position_bytes});
    return records_.write(records);
  }
  return Error{.code = ErrorCode::not_found, .where = where, .detail = "there is no region " + serial};
}

// Leases may be in use on it already: whatever comes of it, it stays.
Status RegionMaker::try_again(const CxlRegion& region, const Probe& probe) {
  const std::string serial = serial_of(region);
  if (!untried_.contains(serial)) return {};
  const Probed probed = probe(region);
  if (probed.status.ok()) untried_.erase(serial);
  if (probed.status.ok() || probed.tried) return probed.status;
  return not_tried(probed.status.error());
}

Status RegionMaker::restore_one(RegionRecord& record, const CxlView& view, const Probe& probe) {
  std::string left;
  for (const CxlRegion& region : view.regions) {
    if (whole(region) && serial_of(region) == record.serial && record.made) return try_again(region, probe);
    if (left_of(region, record)) left = region.name;
  }
  if (!left.empty()) TERRACE_RETURN_IF_ERROR(kernel_.remove(left));
  if (!record.made) return view.unseen.empty() ? Status() : Status(not_all_seen(view));
  if (!view.unseen.empty()) return {};  // it may be there: the next look decides
  TERRACE_ASSIGN_OR_RETURN(const CxlView now, kernel_.look());
  RegionRequest request{record.memdevs, record.granularity, record.bytes};
  TERRACE_ASSIGN_OR_RETURN(const RegionPlan plan, plan_region(request, now));
  Status first;
  for (const RegionAttempt& attempt : plan.attempts) {
    if (attempt.order != record.memdevs) continue;  // another order would show other bytes
    bool refused = false;
    record.root = attempt.root;
    Status status = make(record, attempt.root, probe, true, refused);
    if (status.ok()) return {};
    if (first.ok()) first = std::move(status);
    if (!refused) break;
  }
  return first;
}

std::vector<RegionProblem> RegionMaker::restore(const Probe& probe) {
  std::vector<RegionProblem> problems;
  auto records = records_.read();
  if (!records.ok()) return {{"", records.error().detail}};
  std::vector<RegionRecord> kept, ordered = *records;
  // Those over the same memdevs come to lie one behind the other, as they did.
  std::stable_sort(ordered.begin(), ordered.end(), [](const RegionRecord& a, const RegionRecord& b) {
    return a.position_bytes < b.position_bytes;
  });
  for (RegionRecord& record : ordered) {
    const auto view = kernel_.look();
    const Status status = view.ok() ? restore_one(record, *view, probe) : Status(view.error());
    if (!status.ok()) problems.push_back({record.serial, status.error().detail});
    if (record.made || !status.ok()) kept.push_back(std::move(record));
  }
  if (kept != *records)
    if (const Status written = records_.write(kept); !written.ok())
      problems.push_back({"", written.error().detail});
  return problems;
}

}  // namespace terrace::daemon
