// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace terrace::plan {
namespace {

constexpr const char* ink = "#222222";
constexpr const char* faint = "#dddddd";

// At most two decimals, none that say nothing: short files, and the same on every machine.
std::string number(double value) {
  char text[48];
  std::snprintf(text, sizeof text, "%.2f", value);
  std::string result = text;
  if (result.find('.') != std::string::npos) {
    result.erase(result.find_last_not_of('0') + 1);
    if (result.back() == '.') result.pop_back();
  }
  return result == "-0" ? "0" : result;
}

std::string escaped_xml(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

std::string stroke(const LineStyle& style) {
  std::string text = " fill=\"none\" stroke=\"" + std::string(style.colour) + "\" stroke-width=\"" +
                     number(style.width) + "\"";
  if (*style.dashes != '\0') text += " stroke-dasharray=\"" + std::string(style.dashes) + "\"";
  return text;
}

// Where the data are drawn, and how values become places.
struct Frame {
  double left, top, width, height;
  double x_low, x_high, y_low, y_high;

  SvgPoint place(SvgPoint value) const {
    const double x = (value.x - x_low) / (x_high - x_low);
    const double y = (value.y - y_low) / (y_high - y_low);
    return {left + std::clamp(x, 0.0, 1.0) * width, top + (1 - std::clamp(y, 0.0, 1.0)) * height};
  }
};

std::vector<SvgPoint> stairs(const std::vector<SvgPoint>& points) {
  std::vector<SvgPoint> result;
  for (const SvgPoint& point : points) {
    if (!result.empty()) result.push_back({point.x, result.back().y});
    result.push_back(point);
  }
  return result;
}

void draw_axes(Svg& svg, const Chart& chart, const Frame& frame) {
  for (const double value : round_ticks(frame.y_low, frame.y_high, 6)) {
    const SvgPoint at = frame.place({frame.x_low, value});
    svg.line(at, {frame.left + frame.width, at.y}, {.colour = value == 0 ? "#888888" : faint});
    svg.text({at.x - 6, at.y + 4}, number(value), {.size = 11, .anchor = "end"});
  }
  for (const double value : round_ticks(frame.x_low, frame.x_high, 8)) {
    const SvgPoint at = frame.place({value, frame.y_low});
    svg.line(at, {at.x, at.y + 4}, {.colour = ink});
    svg.text({at.x, at.y + 17}, number(value), {.size = 11, .anchor = "middle"});
  }
  const double bottom = frame.top + frame.height;
  svg.line({frame.left, bottom}, {frame.left + frame.width, bottom}, {.colour = ink});
  svg.line({frame.left, frame.top}, {frame.left, bottom}, {.colour = ink});
  svg.text({frame.left + frame.width / 2, bottom + 35}, chart.x_title, {.anchor = "middle"});
  svg.text({chart.corner.x + 12, frame.top + frame.height / 2}, chart.y_title,
           {.anchor = "middle", .upwards = true});
}

// Below the x axis, so that it never hides a line.
void draw_legend(Svg& svg, const Chart& chart, double left, double top, double width) {
  double x = left;
  double y = top;
  for (const Series& series : chart.series) {
    if (series.name.empty()) continue;
    const double needed = 34 + 6.4 * static_cast<double>(series.name.size());
    if (x + needed > left + width && x > left) {
      x = left;
      y += 17;
    }
    svg.line({x, y - 4}, {x + 22, y - 4}, series.style);
    svg.text({x + 27, y}, series.name, {.size = 11});
    x += needed + 8;
  }
}

}  // namespace

Svg::Svg(double width, double height, const std::string& title, const std::string& description) {
  body_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(width) + "\" height=\"" +
          number(height) + "\" viewBox=\"0 0 " + number(width) + " " + number(height) +
          "\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\"" +
          (description.empty() ? "" : " role=\"img\" aria-labelledby=\"title description\"") + ">\n" +
          (description.empty() ? "<title>" : "<title id=\"title\">") + escaped_xml(title) + "</title>\n";
  if (!description.empty()) body_ += "<desc id=\"description\">" + escaped_xml(description) + "</desc>\n";
  rectangle({0, 0}, width, height, "#ffffff");
}

void Svg::line(SvgPoint from, SvgPoint to, const LineStyle& style) {
  body_ += "<line x1=\"" + number(from.x) + "\" y1=\"" + number(from.y) + "\" x2=\"" + number(to.x) +
           "\" y2=\"" + number(to.y) + "\"" + stroke(style) + "/>\n";
}

void Svg::polyline(const std::vector<SvgPoint>& points, const LineStyle& style) {
  body_ += "<polyline points=\"";
  for (const SvgPoint& point : points) body_ += number(point.x) + "," + number(point.y) + " ";
  body_ += "\" stroke-linejoin=\"round\"" + stroke(style) + "/>\n";
}

void Svg::circle(SvgPoint centre, double radius, const char* colour, bool filled) {
  body_ += "<circle cx=\"" + number(centre.x) + "\" cy=\"" + number(centre.y) + "\" r=\"" + number(radius) +
           "\" fill=\"" + (filled ? colour : "#ffffff") + "\" stroke=\"" + colour +
           "\" stroke-width=\"1.5\"/>\n";
}

void Svg::text(SvgPoint at, std::string_view text, const TextStyle& style) {
  body_ += "<text x=\"" + number(at.x) + "\" y=\"" + number(at.y) + "\" font-size=\"" + number(style.size) +
           "\" text-anchor=\"" + style.anchor + "\" fill=\"" + style.colour + "\"";
  if (style.bold) body_ += " font-weight=\"bold\"";
  if (style.upwards) body_ += " transform=\"rotate(-90 " + number(at.x) + " " + number(at.y) + ")\"";
  body_ += ">" + escaped_xml(text) + "</text>\n";
}

void Svg::rectangle(SvgPoint corner, double width, double height, const char* fill, std::string_view title) {
  body_ += "<rect x=\"" + number(corner.x) + "\" y=\"" + number(corner.y) + "\" width=\"" + number(width) +
           "\" height=\"" + number(height) + "\" fill=\"" + fill +
           (title.empty() ? "\"/>\n" : "\"><title>" + escaped_xml(title) + "</title></rect>\n");
}

std::string Svg::finish() const {
  return body_ + "</svg>\n";
}

std::vector<double> round_ticks(double low, double high, int wanted) {
  if (!(high > low) || wanted < 1) return {low};
  const double rough = (high - low) / wanted;
  const double magnitude = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * magnitude;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * magnitude >= rough * 0.999) {
      step = factor * magnitude;
      break;
    }
  }
  std::vector<double> ticks;
  for (double index = std::ceil(low / step - 1e-9); index * step <= high + step * 1e-9; ++index)
    ticks.push_back(index * step);
  return ticks;
}

void draw_chart(Svg& svg, const Chart& chart) {
  constexpr double left = 66, right = 16, above = 34, below = 88;  // room for titles, ticks and legend
  Frame frame{chart.corner.x + left,
              chart.corner.y + above,
              chart.width - left - right,
              chart.height - above - below,
              0,
              0,
              0,
              0};
  for (const Series& series : chart.series) {
    for (const SvgPoint& point : series.points) {
      frame.x_high = std::max(frame.x_high, point.x);
      frame.y_low = std::min(frame.y_low, point.y);
      frame.y_high = std::max(frame.y_high, point.y);
    }
  }
  if (chart.y_max.has_value()) frame.y_high = *chart.y_max;
  if (frame.x_high <= frame.x_low) frame.x_high = frame.x_low + 1;
  if (frame.y_high <= frame.y_low) frame.y_high = frame.y_low + 1;
  if (!chart.y_max.has_value()) frame.y_high += 0.05 * (frame.y_high - frame.y_low);
  if (frame.y_low < 0) frame.y_low -= 0.05 * (frame.y_high - frame.y_low);

  svg.text({frame.left, chart.corner.y + 18}, chart.title, {.size = 14, .bold = true});
  draw_axes(svg, chart, frame);
  for (const Series& series : chart.series) {
    std::vector<SvgPoint> places;
    for (const SvgPoint& point : series.steps ? stairs(series.points) : series.points)
      places.push_back(frame.place(point));
    if (places.size() > 1) svg.polyline(places, series.style);
    for (size_t index = 0; index < series.marks.size() && index < series.points.size(); ++index)
      svg.circle(frame.place(series.points[index]), 3.5, series.style.colour, series.marks[index]);
  }
  draw_legend(svg, chart, frame.left, frame.top + frame.height + 58, frame.width);
}

}  // namespace terrace::plan
