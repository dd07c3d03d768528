// SPDX-License-Identifier: Apache-2.0
// Writes one SVG picture: shapes, text and charts with axes. Self-contained, no script, no outside font.
//
// Place     Below figure.h; knows nothing of memory. Pure: builds a string.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::plan {

struct SvgPoint {
  double x = 0;
  double y = 0;
};

struct TextStyle {
  double size = 12;
  const char* anchor = "start";  // start, middle, end
  const char* colour = "#222222";
  bool bold = false;
  bool upwards = false;  // turned by 90 degrees, for the title of a y axis
};

struct LineStyle {
  const char* colour = "#222222";
  double width = 1;
  const char* dashes = "";  // as stroke-dasharray: "4 3"
};

class Svg {
 public:
  // `description`: what the picture shows, in words, for who cannot see it.
  Svg(double width, double height, const std::string& title, const std::string& description = "");
  void line(SvgPoint from, SvgPoint to, const LineStyle& style);
  void polyline(const std::vector<SvgPoint>& points, const LineStyle& style);
  void circle(SvgPoint centre, double radius, const char* colour, bool filled);
  void text(SvgPoint at, std::string_view text, const TextStyle& style);
  // `title`: what a pointer over it shows.
  void rectangle(SvgPoint corner, double width, double height, const char* fill, std::string_view title = "");
  std::string finish() const;  // the whole document

 private:
  std::string body_;
};

// One line of a chart. Points beyond the axes are cut off by the frame's edge.
struct Series {
  std::string name;  // in the legend; empty: not there
  std::vector<SvgPoint> points;
  LineStyle style;
  bool steps = false;       // a value holds until the next point: drawn as stairs
  std::vector<bool> marks;  // a mark at each point, filled or hollow; empty: none
};

struct Chart {
  SvgPoint corner;  // upper left of everything, titles included
  double width = 600;
  double height = 380;
  std::string title;
  std::string x_title;
  std::string y_title;
  std::vector<Series> series;
  std::optional<double> y_max;  // else from the data
};

// Ticks are round numbers; both axes begin at 0, or below where values are negative.
void draw_chart(Svg& svg, const Chart& chart);

// Round tick values that cover low..high, about `wanted` of them.
std::vector<double> round_ticks(double low, double high, int wanted);

}  // namespace terrace::plan
