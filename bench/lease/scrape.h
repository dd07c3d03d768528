// SPDX-License-Identifier: Apache-2.0
// What it costs the manager to be scraped and read over HTTP (docs/operations/monitoring.md).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/lease/manager.h"

namespace terrace::bench {

// Of the leases that `manager` has now. scrape_us_p50, _p99, scrape_bytes: of /metrics, one after the other;
// scrape_core_pct: the manager's processor time for one a second; page_of_1000_ms, _bytes: of 1,000 leases as JSON, and
// page_of_1000_five_fields_ms, _bytes with fields=id,pool,tenant,phase,bytes.
void measure_scrape(const Manager& manager, bool smoke, nlohmann::json& figures);

}  // namespace terrace::bench
