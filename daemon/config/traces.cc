// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/traces.h"

#include "daemon/config/events.h"

namespace terrace::daemon {

void read_traces(Section& top, DaemonConfig& config) {
  const toml::table* table = top.table("traces");
  if (table == nullptr) return;
  Section section = top.inner(*table, "traces");
  section.text("endpoint", config.traces_endpoint);
  section.ratio("sample", config.traces_sample);
  section.finish();
}

void check_traces(const DaemonConfig& config, std::vector<ConfigProblem>& problems) {
  if (config.traces_endpoint.empty()) return;
  if (!names_server(config.traces_endpoint))
    problems.push_back(
        {{"traces", "endpoint"},
         "endpoint '" + config.traces_endpoint +
             "' must be http://HOST:PORT/v1/traces or https://HOST/v1/traces, without a name and "
             "password"});
  if (config.role == Role::agent)
    problems.push_back({{"traces", "endpoint"}, "an agent sends no traces: its manager does"});
}

}  // namespace terrace::daemon
