// SPDX-License-Identifier: Apache-2.0
// Prometheus' text format.
#include "daemon/web/metrics/metrics_text.h"

#include <doctest/doctest.h>

using terrace::daemon::MetricsText;

TEST_CASE("Metrics: a family has its help and type once, before its samples") {
  MetricsText out;
  out.family("terrace_pool_bytes", MetricsText::Kind::gauge, "Bytes of a pool.");
  out.sample(uint64_t{18446744073709551615u}, {{"pool", "a"}, {"state", "free"}});
  out.sample(uint64_t{0}, {{"pool", "b"}, {"state", "free"}});
  out.counter("terrace_commits_total", "Commits.", uint64_t{7});
  out.gauge("terrace_uptime_seconds", "Since the start.", 1.5);
  CHECK(out.text() ==
        "# HELP terrace_pool_bytes Bytes of a pool.\n"
        "# TYPE terrace_pool_bytes gauge\n"
        "terrace_pool_bytes{pool=\"a\",state=\"free\"} 18446744073709551615\n"
        "terrace_pool_bytes{pool=\"b\",state=\"free\"} 0\n"
        "# HELP terrace_commits_total Commits.\n"
        "# TYPE terrace_commits_total counter\n"
        "terrace_commits_total 7\n"
        "# HELP terrace_uptime_seconds Since the start.\n"
        "# TYPE terrace_uptime_seconds gauge\n"
        "terrace_uptime_seconds 1.5\n");
}

TEST_CASE("Metrics: a label's value ends where it ends") {
  MetricsText out;
  out.family("x", MetricsText::Kind::gauge, "y");
  out.sample(uint64_t{1}, {{"tenant", "a\"b\\c\nd"}});
  CHECK(out.text().ends_with("x{tenant=\"a\\\"b\\\\c\\nd\"} 1\n"));
}

TEST_CASE("Metrics: a histogram's buckets count all up to their bounds, and end with all") {
  terrace::daemon::LatencyHistogram times;
  times.add(20'000);  // a bound is in its bucket
  times.add(20'001);
  times.add(3'000'000);
  times.add(3'600'000'000'000);
  MetricsText out;
  out.family("terrace_fence_seconds", MetricsText::Kind::histogram, "Fences.");
  out.sample(times, {{"pool", "p"}});
  const std::string& text = out.text();
  CHECK(
      text.starts_with("# HELP terrace_fence_seconds Fences.\n# TYPE terrace_fence_seconds histogram\n"
                       "terrace_fence_seconds_bucket{pool=\"p\",le=\"2e-05\"} 1\n"
                       "terrace_fence_seconds_bucket{pool=\"p\",le=\"5e-05\"} 2\n"));
  CHECK(text.find("{pool=\"p\",le=\"0.0025\"} 2\n") != std::string::npos);
  CHECK(text.find("{pool=\"p\",le=\"0.005\"} 3\n") != std::string::npos);
  CHECK(text.find("{pool=\"p\",le=\"60\"} 3\n") != std::string::npos);
  CHECK(
      text.ends_with("{pool=\"p\",le=\"+Inf\"} 4\n"
                     "terrace_fence_seconds_sum{pool=\"p\"} 3600.003040001\n"
                     "terrace_fence_seconds_count{pool=\"p\"} 4\n"));
}
