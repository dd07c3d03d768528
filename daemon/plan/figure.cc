// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/figure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "core/base/units.h"
#include "daemon/plan/over_time.h"
#include "daemon/plan/svg.h"

namespace terrace::plan {
namespace {

// Distinguishable with the usual kinds of colour blindness (Okabe and Ito's set, without its yellow).
constexpr const char* colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
constexpr const char* blue = "#0072b2";
constexpr const char* orange = "#d55e00";
constexpr const char* green = "#009e73";
constexpr const char* grey = "#777777";

double in_gib(double bytes) {
  return bytes / static_cast<double>(gib);
}
double in_gib(uint64_t bytes) {
  return in_gib(static_cast<double>(bytes));
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f%%", share * 100);
  return text;
}

std::vector<SvgPoint> over_time(const Outcome& outcome, const Trace& trace,
                                const std::function<double(const Sample&)>& value) {
  constexpr size_t columns = 480;
  const double span_s = std::max(1.0, static_cast<double>(trace.end_s - trace.begin_s));
  std::vector<SvgPoint> points;
  for (const double highest : highest_over_time(outcome, trace, columns, value))
    points.push_back({span_s * static_cast<double>(points.size()) / columns, highest});
  return points;
}

// Seconds as the unit that suits the trace's length.
struct TimeUnit {
  const char* name;
  double seconds;
};
TimeUnit time_unit(const Trace& trace) {
  const uint64_t span_s = trace.end_s - trace.begin_s;
  if (span_s >= 3 * 86400) return {"days", 86400};
  if (span_s >= 3 * 3600) return {"hours", 3600};
  if (span_s >= 3 * 60) return {"minutes", 60};
  return {"seconds", 1};
}

void scale_time(std::vector<SvgPoint>& points, const TimeUnit& unit) {
  for (SvgPoint& point : points) point.x /= unit.seconds;
}

std::vector<SvgPoint> level(double x_high, double y) {
  return {{0, y}, {x_high, y}};
}

double largest_pool(const Plan& plan) {
  uint64_t largest = 0;
  for (const Row& row : plan.rows) {
    if (row.point.has_value()) largest = std::max(largest, row.point->setup.pool_bytes);
    for (const Point& point : row.sweep) largest = std::max(largest, point.setup.pool_bytes);
  }
  return largest == 0 ? 1 : in_gib(largest);
}

// One curve a local fraction; its marks are filled where few enough requests were rejected.
std::vector<Series> by_pool_size(const Plan& plan, const std::function<double(const Point&)>& value) {
  std::vector<Series> all;
  std::vector<double> fractions;
  for (const Row& row : plan.rows)
    if (std::find(fractions.begin(), fractions.end(), row.local_fraction) == fractions.end())
      fractions.push_back(row.local_fraction);
  for (size_t index = 0; index < fractions.size(); ++index) {
    std::vector<const Point*> points;
    for (const Row& row : plan.rows) {
      if (row.local_fraction != fractions[index]) continue;
      if (row.point.has_value()) points.push_back(&*row.point);
      for (const Point& point : row.sweep) points.push_back(&point);
    }
    std::stable_sort(points.begin(), points.end(),
                     [](const Point* a, const Point* b) { return a->setup.pool_bytes < b->setup.pool_bytes; });
    Series series;
    series.name = percent(fractions[index]) + " local";
    series.style = {.colour = colours[index % std::size(colours)], .width = 1.8};
    for (const Point* point : points) {
      series.points.push_back({in_gib(point->setup.pool_bytes), value(*point)});
      series.marks.push_back(point->acceptable);
    }
    all.push_back(std::move(series));
  }
  return all;
}

Chart saving_chart(const Plan& plan) {
  Chart chart;
  chart.title = "Memory saved, by pool size (filled: rejects few enough)";
  chart.x_title = "shared pool, GiB";
  chart.y_title = "less memory than the baseline, %";
  chart.series = by_pool_size(plan, [](const Point& point) { return point.saving * 100; });
  if (plan.without_pool.has_value()) {
    chart.series.push_back({.name = "smaller hosts, no pool",
                            .points = level(largest_pool(plan), plan.without_pool->saving * 100),
                            .style = {.colour = grey, .width = 1.5, .dashes = "5 4"},
                            .steps = false,
                            .marks = {}});
  }
  return chart;
}

Chart rejection_chart(const Plan& plan) {
  Chart chart;
  chart.title = "Requests rejected, by pool size";
  chart.x_title = "shared pool, GiB";
  chart.y_title = "requests rejected, %";
  chart.series = by_pool_size(plan, [](const Point& point) { return point.outcome.rejected_share() * 100; });
  const double allowed = static_cast<double>(plan.rejected_max) / static_cast<double>(plan.baseline.requests);
  chart.series.push_back({.name = "allowed",
                          .points = level(largest_pool(plan), allowed * 100),
                          .style = {.colour = grey, .width = 1.5, .dashes = "5 4"},
                          .steps = false,
                          .marks = {}});
  // The interesting part is near what is allowed; curves that leave it are cut off.
  double highest = 0;
  for (const Series& series : chart.series)
    for (const SvgPoint& point : series.points) highest = std::max(highest, point.y);
  const double enough = std::max(allowed * 100 * 8, 1.0);
  if (highest > enough) {
    chart.y_max = enough;
    chart.title += " (cut off above " + percent(enough / 100) + ")";
  }
  return chart;
}

Series timed(const std::string& name, std::vector<SvgPoint> points, const TimeUnit& unit,
             const LineStyle& style) {
  scale_time(points, unit);
  return {.name = name, .points = std::move(points), .style = style, .steps = true, .marks = {}};
}

Chart use_chart(const Plan& plan, const Trace& trace, const Outcome& shown, const Setup& setup) {
  const TimeUnit unit = time_unit(trace);
  Chart chart;
  chart.title = "Memory in use (highest of each span)";
  chart.x_title = std::string("time, ") + unit.name;
  chart.y_title = "GiB";
  const auto local = [](const Sample& sample) { return in_gib(sample.local_used_bytes); };
  const auto pool = [](const Sample& sample) { return in_gib(sample.pool_used_bytes); };
  chart.series.push_back(
      timed("baseline hosts", over_time(plan.baseline, trace, local), unit, {.colour = grey, .width = 1.2}));
  chart.series.push_back(
      timed("hosts, local", over_time(shown, trace, local), unit, {.colour = blue, .width = 1.5}));
  const double span = static_cast<double>(trace.end_s - trace.begin_s) / unit.seconds;
  const auto line = [span](const char* name, uint64_t bytes, const char* colour) {
    return Series{.name = name,
                  .points = level(span, in_gib(bytes)),
                  .style = {.colour = colour, .width = 1.2, .dashes = "5 4"},
                  .steps = false,
                  .marks = {}};
  };
  chart.series.push_back(line("all local memory", setup.hosts * setup.local_bytes, blue));
  if (setup.pool_bytes > 0) {
    chart.series.push_back(
        timed("pool", over_time(shown, trace, pool), unit, {.colour = orange, .width = 1.5}));
    chart.series.push_back(line("pool's size", setup.pool_bytes, orange));
  }
  chart.series.push_back(line("baseline's size", plan.baseline_bytes, grey));
  return chart;
}

Chart waste_chart(const Plan& plan, const Trace& trace, const Outcome& shown, const Setup& setup) {
  const TimeUnit unit = time_unit(trace);
  Chart chart;
  chart.title = "Fragmentation and stranded memory (highest of each span)";
  chart.x_title = std::string("time, ") + unit.name;
  chart.y_title = "%";
  const double local = std::max(1.0, static_cast<double>(setup.hosts * setup.local_bytes));
  const double baseline = std::max(1.0, static_cast<double>(plan.baseline_bytes));
  const auto share = [](double whole) {
    return [whole](const Sample& sample) { return 100 * static_cast<double>(sample.stranded_bytes) / whole; };
  };
  chart.series.push_back(timed("stranded in the baseline, of its memory",
                               over_time(plan.baseline, trace, share(baseline)), unit,
                               {.colour = grey, .width = 1.2}));
  chart.series.push_back(timed("stranded, of local memory", over_time(shown, trace, share(local)), unit,
                               {.colour = green, .width = 1.5}));
  if (setup.pool_bytes > 0) {
    chart.series.push_back(
        timed("pool's free memory that is not in longest runs",
              over_time(shown, trace, [](const Sample& sample) { return 100 * sample.fragmentation; }), unit,
              {.colour = orange, .width = 1.5}));
  }
  return chart;
}

std::string subtitle(const Plan& plan, const Setup& setup) {
  return "Time charts: " + std::to_string(setup.hosts) + (setup.hosts == 1 ? " host of " : " hosts of ") +
         format_size(setup.local_bytes) +
         (setup.pool_bytes > 0 ? " and a pool of " + format_size(setup.pool_bytes) : ", no pool") +
         "; baseline: the same hosts with " + format_size(plan.baseline_setup.local_bytes) +
         " each and no pool";
}

}  // namespace

std::string figure(const Plan& plan, const Trace& trace, const std::string& trace_name) {
  constexpr double width = 1240, head = 56, chart_width = 620, chart_height = 400;
  const Point* point = plan.shown();
  const Outcome& shown = point != nullptr ? point->outcome : plan.baseline;
  const Setup& setup = point != nullptr ? point->setup : plan.baseline_setup;
  const std::string title =
      "Pooling memory for " + std::to_string(trace.requests.size()) + " requests of " + trace_name;
  Svg svg(width, head + 2 * chart_height, title);
  svg.text({20, 26}, title, {.size = 18, .bold = true});
  svg.text({20, 46}, subtitle(plan, setup), {.size = 12, .colour = "#555555"});

  Chart charts[] = {saving_chart(plan), rejection_chart(plan), use_chart(plan, trace, shown, setup),
                    waste_chart(plan, trace, shown, setup)};
  for (size_t index = 0; index < std::size(charts); ++index) {
    charts[index].corner = {static_cast<double>(index % 2) * chart_width,
                            head + static_cast<double>(index / 2) * chart_height};
    charts[index].width = chart_width;
    charts[index].height = chart_height;
    draw_chart(svg, charts[index]);
  }
  return svg.finish();
}

}  // namespace terrace::plan
