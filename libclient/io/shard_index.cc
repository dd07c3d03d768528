// SPDX-License-Identifier: Apache-2.0
// Read by events, as headers are: nothing is built that the format does not have, and nesting costs nothing.
#include "libclient/io/shard_index.h"

#include <nlohmann/json.hpp>

#include "core/layout/tensor_catalog.h"
#include "terrace/tensor.h"

namespace terrace {
namespace {

// Each event returns false to stop the parser; `error` then says why.
class IndexEvents {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  bool null() { return value(); }
  bool boolean(bool) { return value(); }
  bool number_integer(number_integer_t) { return value(); }
  bool number_unsigned(number_unsigned_t) { return value(); }
  bool number_float(number_float_t, const string_t&) { return value(); }
  bool binary(binary_t&) { return value(); }

  bool string(string_t& text) {
    if (!in_map()) return value();
    if (text.empty() || text == "." || text == ".." || text.find('/') != std::string::npos ||
        text.find('\0') != std::string::npos)
      return refuse(ErrorCode::corrupt, "tensor " + quoted_name(key_) + " is said to be in " +
                                            quoted_name(text) +
                                            ", which is no name of a file beside the index");
    if (!files.emplace(key_, text).second)
      return refuse(ErrorCode::corrupt, "its weight_map has tensor " + quoted_name(key_) + " twice");
    if (files.size() > layout::catalog_records_max)
      return refuse(ErrorCode::limit_exceeded, "its weight_map has more than 1048576 tensors");
    return true;
  }

  bool start_object(size_t) {
    if (in_map()) return value();
    if (depth_ == 1 && key_ == "weight_map") {
      if (std::exchange(map_seen_, true)) return refuse(ErrorCode::corrupt, "it has weight_map twice");
      in_map_ = true;
    }
    ++depth_;
    return true;
  }
  bool end_object() {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  bool start_array(size_t) {
    if (!value()) return false;
    ++depth_;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }
  bool key(string_t& text) {
    if (depth_ == 1 || in_map()) key_ = text;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return refuse(ErrorCode::corrupt, "it is not valid JSON at its byte " + std::to_string(position));
  }

  bool map_seen() const { return map_seen_; }

  std::map<std::string, std::string> files;
  ErrorCode error_code = ErrorCode::ok;
  std::string error;

 private:
  bool in_map() const { return in_map_ && depth_ == 2; }

  // Anything but what a weight_map has.
  bool value() {
    if (depth_ == 0) return refuse(ErrorCode::corrupt, "it is not a JSON object");
    if (depth_ == 1 && key_ == "weight_map") return refuse(ErrorCode::corrupt, "its weight_map is no object");
    if (!in_map()) return true;
    return refuse(ErrorCode::corrupt, "its weight_map has no file's name for tensor " + quoted_name(key_));
  }

  bool refuse(ErrorCode code, std::string text) {
    error_code = code;
    error = std::move(text);
    return false;
  }

  uint64_t depth_ = 0;
  bool in_map_ = false, map_seen_ = false;
  std::string key_;
};

}  // namespace

Result<std::map<std::string, std::string>> parse_shard_index(std::string_view text, std::string_view path) {
  const auto refuse = [&](ErrorCode code, const std::string& detail) {
    return Error{.code = code, .where = "parse_shard_index", .detail = std::string(path) + ": " + detail};
  };
  if (!is_utf8(text)) return refuse(ErrorCode::corrupt, "it is not UTF-8; is it an index of shards?");
  IndexEvents events;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) {
    return refuse(events.error_code == ErrorCode::ok ? ErrorCode::corrupt : events.error_code, events.error);
  }
  if (!events.map_seen()) return refuse(ErrorCode::corrupt, "it has no weight_map; is it an index of shards?");
  return std::move(events.files);
}

}  // namespace terrace
