// SPDX-License-Identifier: Apache-2.0
// The picture is well-formed, complete, and says the same every time.
#include "daemon/plan/figure.h"

#include <algorithm>

#include "daemon/plan/svg.h"
#include "tests/unit/plan/traces.h"

using namespace terrace;
using namespace terrace::plan;

namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("Svg: names of strangers cannot add elements") {
  Svg svg(10, 10, "a<b>&\"c\"");
  svg.text({1, 2}, "<script>", {});
  const std::string text = svg.finish();
  CHECK(text.find("<script>") == std::string::npos);
  CHECK(text.find("&lt;script&gt;") != std::string::npos);
  CHECK(text.find("a&lt;b&gt;&amp;&quot;c&quot;") != std::string::npos);
}

TEST_CASE("Svg: ticks are round and cover the range") {
  CHECK(round_ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(round_ticks(0, 1000, 4) == std::vector<double>{0, 250, 500, 750, 1000});
  CHECK(round_ticks(-4, 4, 4) == std::vector<double>{-4, -2, 0, 2, 4});
  CHECK(round_ticks(3, 3, 4) == std::vector<double>{3});
}

TEST_CASE("Svg: a chart's numbers are finite and within its frame, also without data") {
  Svg svg(600, 400, "t");
  Chart chart;
  chart.title = "empty";
  draw_chart(svg, chart);
  chart.series.push_back({.name = "one", .points = {{5, 5}}, .style = {}, .steps = true, .marks = {true}});
  draw_chart(svg, chart);
  const std::string text = svg.finish();
  CHECK(text.find("nan") == std::string::npos);
  CHECK(text.find("inf") == std::string::npos);
}

TEST_CASE("Figure: four titled charts with axes and legends, the same each time") {
  Question question;
  question.setup = setup_of(1, 1, 0);
  question.hosts = 2;
  question.host_memory_bytes = 12 * gib;
  question.local_fractions = {0.5, 1.0 / 3};
  const Trace trace = opposite_peaks();
  const Result<Plan> plan = make_plan(trace, question);
  REQUIRE(plan.ok());
  const std::string text = figure(*plan, trace, "made.csv");
  CHECK(text == figure(*plan, trace, "made.csv"));
  CHECK(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(text.ends_with("</svg>\n"));
  CHECK(count(text, "<text") == count(text, "</text>"));
  for (const char* part :
       {"Memory saved", "Requests rejected", "Memory in use", "Fragmentation and stranded", "shared pool, GiB",
        "time, seconds", "50% local", "33% local", "4 requests of made.csv"}) {
    CAPTURE(part);
    CHECK(count(text, part) >= 1);
  }
  CHECK(text.find("nan") == std::string::npos);
  CHECK(text.find("inf") == std::string::npos);
}
