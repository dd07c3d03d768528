// SPDX-License-Identifier: Apache-2.0
// Parses and checks the JSON header of a safetensors file, byte by byte hostile. The parser is driven by
// events, so that nothing is built that the format does not have, and nesting costs nothing.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/layout/tensor_catalog.h"
#include "terrace/safetensors.h"

namespace terrace {
namespace {

constexpr std::string_view metadata_key = "__metadata__";

struct RawTensor {
  std::string name;
  std::optional<DType> dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
  bool has_offsets = false;
};

// Receives the parser's events. Each returns false to stop the parser; `error` then says why.
class HeaderEvents {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) { return unexpected("a fraction or a number above 2^64"); }
  bool binary(binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) {
    if (place_ == Place::shape) {
      if (tensor().shape.size() == Shape::rank_max) {
        return stop(ErrorCode::unsupported, "has more than 8 dimensions; reshape it");
      }
      tensor().shape.push_back(value);
      return true;
    }
    if (place_ == Place::offsets) {
      if (tensor().offsets.size() == 2) return stop(ErrorCode::corrupt, "data_offsets must be two numbers");
      tensor().offsets.push_back(value);
      return true;
    }
    return unexpected("a number");
  }

  bool string(string_t& value) {
    if (place_ == Place::metadata && !key_.empty_slot) {
      metadata.emplace_back(std::move(key_.text), std::move(value));
      key_.empty_slot = true;
      return true;
    }
    if (place_ == Place::tensor && key_.text == "dtype") {
      tensor().dtype = dtype_from_name(value);
      if (tensor().dtype) return true;
      return stop(ErrorCode::unsupported,
                  "has the unknown dtype " + quoted_name(value) + "; known are " + dtype_names());
    }
    return unexpected("a string");
  }

  bool start_object(size_t) {
    if (place_ == Place::outside) {
      place_ = Place::top;
      return true;
    }
    if (place_ == Place::top && key_.text == metadata_key) {
      place_ = Place::metadata;
      return true;
    }
    if (place_ == Place::top) {
      place_ = Place::tensor;
      return true;
    }
    return unexpected("an object");
  }

  bool key(string_t& value) {
    switch (place_) {
      case Place::top:
        if (value == metadata_key) {
          if (std::exchange(metadata_seen_, true))
            return refuse(ErrorCode::corrupt, "__metadata__ comes twice");
        } else if (!add_tensor(value)) {
          return false;
        }
        break;
      case Place::metadata:
        if (metadata.size() == layout::catalog_metadata_entries_max) {
          return refuse(ErrorCode::limit_exceeded, "__metadata__ has more than 65536 entries");
        }
        if (!metadata_keys_.insert(value).second) {
          return refuse(ErrorCode::corrupt, "__metadata__ has the key " + quoted_name(value) + " twice");
        }
        break;
      default:
        if (!claim_field(value)) return false;
    }
    key_.text = value;
    key_.empty_slot = false;
    return true;
  }

  bool end_object() {
    if (place_ == Place::tensor) {
      if (!tensor().dtype) return stop(ErrorCode::corrupt, "has no dtype");
      if (!tensor().has_shape) return stop(ErrorCode::corrupt, "has no shape");
      if (tensor().offsets.size() != 2) return stop(ErrorCode::corrupt, "data_offsets must be two numbers");
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool start_array(size_t) {
    if (place_ == Place::tensor && key_.text == "shape") {
      place_ = Place::shape;
      return true;
    }
    if (place_ == Place::tensor && key_.text == "data_offsets") {
      place_ = Place::offsets;
      return true;
    }
    return unexpected("an array");
  }

  bool end_array() {
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return refuse(ErrorCode::corrupt, "the header is not valid JSON at its byte " + std::to_string(position));
  }

  std::vector<RawTensor> tensors;
  TensorMetadata metadata;
  ErrorCode error_code = ErrorCode::ok;
  std::string error;

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };

  RawTensor& tensor() { return tensors.back(); }

  bool refuse(ErrorCode code, std::string text) {
    error_code = code;
    error = std::move(text);
    return false;
  }
  // Refuses because of the tensor being read.
  bool stop(ErrorCode code, const std::string& text) {
    return refuse(code, "tensor " + quoted_name(tensor().name) + " " + text);
  }

  bool unexpected(const char* what) {
    switch (place_) {
      case Place::outside:
        return refuse(ErrorCode::corrupt, std::string("the header is ") + what + ", not an object");
      case Place::top:
        if (key_.text == metadata_key) {
          return refuse(ErrorCode::corrupt, std::string("__metadata__ is ") + what + ", not an object");
        }
        return stop(ErrorCode::corrupt, std::string("is described by ") + what + ", not by an object");
      case Place::metadata:
        return refuse(ErrorCode::corrupt, "__metadata__ " + quoted_name(key_.text) + " is " + what +
                                              "; its values must be strings");
      case Place::tensor: return stop(ErrorCode::corrupt, "has " + std::string(what) + " as its " + key_.text);
      case Place::shape: return stop(ErrorCode::corrupt, "has " + std::string(what) + " in its shape");
      case Place::offsets: return stop(ErrorCode::corrupt, "has " + std::string(what) + " in its data_offsets");
    }
    return refuse(ErrorCode::corrupt, "the header makes no sense");
  }

  bool add_tensor(const std::string& name) {
    if (tensors.size() == layout::catalog_records_max) {
      return refuse(ErrorCode::limit_exceeded, "the file has more than 1048576 tensors");
    }
    if (name.empty()) return refuse(ErrorCode::corrupt, "a tensor has an empty name; name it");
    tensors.emplace_back().name = name;
    if (name.size() > layout::tensor_name_bytes_max) {
      return stop(ErrorCode::limit_exceeded, "has a name of more than 1024 bytes; shorten it");
    }
    if (name.find('\0') != std::string::npos)
      return stop(ErrorCode::corrupt, "has a NUL in its name; rename it");
    if (!names_.insert(name).second) return stop(ErrorCode::corrupt, "comes twice");
    return true;
  }

  bool claim_field(const std::string& field) {
    bool twice = false;
    if (field == "dtype") {
      twice = tensor().dtype.has_value();
    } else if (field == "shape") {
      twice = std::exchange(tensor().has_shape, true);
    } else if (field == "data_offsets") {
      twice = std::exchange(tensor().has_offsets, true);
    } else {
      return stop(ErrorCode::corrupt, "has the unknown field " + quoted_name(field));
    }
    return twice ? stop(ErrorCode::corrupt, "has " + field + " twice") : true;
  }

  struct Key {
    std::string text;
    bool empty_slot = true;
  };
  Place place_ = Place::outside;
  Key key_;
  bool metadata_seen_ = false;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_keys_;
};

std::string range_text(const RawTensor& raw) {
  return "[" + std::to_string(raw.offsets[0]) + ", " + std::to_string(raw.offsets[1]) + "]";
}

// Checks the tensors against each other and the file; fills in `index.tensors` in file order.
Status place_tensors(std::vector<RawTensor>& raws, uint64_t buffer_bytes, std::string_view file,
                     SafetensorsIndex& index) {
  const auto refuse = [&](ErrorCode code, const RawTensor& raw, const std::string& text) {
    return Error{.code = code,
                 .where = "parse_safetensors_header",
                 .detail = std::string(file) + ": tensor " + quoted_name(raw.name) + " " + text};
  };
  for (const RawTensor& raw : raws) {
    if (raw.offsets[0] > raw.offsets[1]) {
      return refuse(ErrorCode::corrupt, raw,
                    "has data_offsets " + range_text(raw) + ", which end before they begin");
    }
    if (raw.offsets[1] > buffer_bytes) {
      return refuse(ErrorCode::corrupt, raw,
                    "has data_offsets " + range_text(raw) + ", but the file has only " +
                        std::to_string(buffer_bytes) +
                        " bytes behind the header; it was cut short, copy it again");
    }
  }
  std::sort(raws.begin(), raws.end(),
            [](const RawTensor& a, const RawTensor& b) { return a.offsets < b.offsets; });
  uint64_t end = 0;
  for (RawTensor& raw : raws) {
    const Result<Shape> shape = Shape::from(raw.shape);
    if (!shape.ok()) return refuse(ErrorCode::unsupported, raw, "has " + shape.error().detail);
    const Result<uint64_t> bytes = tensor_bytes(*raw.dtype, *shape);
    if (!bytes.ok()) return refuse(ErrorCode::corrupt, raw, "is wrong: " + bytes.error().detail);
    if (*bytes != raw.offsets[1] - raw.offsets[0]) {
      return refuse(ErrorCode::corrupt, raw,
                    "has data_offsets " + range_text(raw) + ", " +
                        std::to_string(raw.offsets[1] - raw.offsets[0]) + " bytes, but " +
                        std::string(dtype_name(*raw.dtype)) + " of shape " + shape->to_string() + " needs " +
                        std::to_string(*bytes));
    }
    if (raw.offsets[0] < end) {
      return refuse(ErrorCode::corrupt, raw,
                    "has data_offsets " + range_text(raw) + ", which overlap those of " +
                        quoted_name(index.tensors.back().name));
    }
    if (raw.offsets[0] > end) {
      return refuse(ErrorCode::corrupt, raw,
                    "has data_offsets " + range_text(raw) + ", which leave a hole of " +
                        std::to_string(raw.offsets[0] - end) + " bytes before them");
    }
    end = raw.offsets[1];
    index.tensors.push_back({.name = std::move(raw.name),
                             .dtype = *raw.dtype,
                             .shape = *shape,
                             .file_offset = index.buffer_offset + raw.offsets[0],
                             .bytes = *bytes});
  }
  if (end != buffer_bytes) {
    return Error{.code = ErrorCode::corrupt,
                 .where = "parse_safetensors_header",
                 .detail = std::string(file) + ": " + std::to_string(buffer_bytes - end) +
                           " bytes behind the last tensor belong to none; write the file again"};
  }
  return {};
}

}  // namespace

Result<SafetensorsIndex> parse_safetensors_header(std::span<const std::byte> header_json, uint64_t file_bytes,
                                                  std::string_view file) {
  const auto refuse = [&](ErrorCode code, const std::string& text) {
    return Error{.code = code, .where = "parse_safetensors_header", .detail = std::string(file) + ": " + text};
  };
  const uint64_t header_bytes = header_json.size();
  if (header_bytes > safetensors_header_bytes_max) {
    return refuse(ErrorCode::limit_exceeded, "its header has more than 100 MB; split the file");
  }
  if (file_bytes < 8 || header_bytes > file_bytes - 8) {
    return refuse(ErrorCode::corrupt, "its header is longer than the file; copy it again");
  }
  const std::string_view text(reinterpret_cast<const char*>(header_json.data()), header_bytes);
  if (text.empty() || text.front() != '{') {
    return refuse(ErrorCode::corrupt, "its header does not begin with '{'; is it a safetensors file?");
  }
  if (!is_utf8(text)) return refuse(ErrorCode::corrupt, "its header is not UTF-8; write the file again");

  HeaderEvents events;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) {
    return refuse(events.error_code == ErrorCode::ok ? ErrorCode::corrupt : events.error_code, events.error);
  }
  SafetensorsIndex index;
  index.buffer_offset = 8 + header_bytes;
  index.file_bytes = file_bytes;
  index.metadata = std::move(events.metadata);
  index.tensors.reserve(events.tensors.size());
  TERRACE_RETURN_IF_ERROR(place_tensors(events.tensors, file_bytes - index.buffer_offset, file, index));
  return index;
}

}  // namespace terrace
