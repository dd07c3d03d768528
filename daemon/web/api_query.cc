// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/api_query.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "core/schema/json.h"
#include "core/schema/words.h"

namespace terrace::daemon {
namespace {

constexpr uint32_t web_rows_max = 1000;  // of leases, of the audit log, of events

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string url_decoded(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool escape = text[at] == '%' && at + 2 < text.size() + 0 && hex_digit(text[at + 1]) >= 0 &&
                        hex_digit(text[at + 2]) >= 0;
    if (escape) {
      plain += static_cast<char>(hex_digit(text[at + 1]) * 16 + hex_digit(text[at + 2]));
      at += 2;
    } else {
      plain += text[at] == '+' ? ' ' : text[at];
    }
  }
  return plain;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> query_parts(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> parts;
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    const size_t equals = part.find('=');
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    if (!part.empty()) parts.emplace_back(url_decoded(part.substr(0, equals)), url_decoded(value));
  }
  return parts;
}

Error web_usage(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "http", .detail = std::move(detail)};
}

capnp::StructSchema asked_fields(capnp::InterfaceSchema::Method method) {
  const capnp::StructSchema params = method.getParamType();
  const auto fields = params.getFields();
  const bool one_struct = fields.size() == 1 && fields[0].getType().isStruct();
  return one_struct ? fields[0].getType().asStruct() : params;
}

Status set_field(capnp::DynamicStruct::Builder params, capnp::StructSchema::Field field, const std::string& key,
                 const std::string& value) {
  const auto which = field.getType().which();
  if (which == capnp::schema::Type::TEXT) {
    params.set(field, capnp::Text::Reader(value.c_str(), value.size()));
    return {};
  }
  if (which == capnp::schema::Type::BOOL && (value == "true" || value == "false")) {
    params.set(field, value == "true");
    return {};
  }
  if (which == capnp::schema::Type::ENUM) {
    const auto type = field.getType().asEnum();
    const std::vector<std::string>& words = schema::words_of(type);
    const auto word = std::find(words.begin(), words.end(), value);
    if (word != words.end()) {
      params.set(field, capnp::DynamicEnum(type, static_cast<uint16_t>(word - words.begin())));
      return {};
    }
  }
  uint64_t number = 0;
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == value.data() + value.size() && !value.empty();
  if (which == capnp::schema::Type::UINT64 && whole) {
    params.set(field, number);
    return {};
  }
  if (which == capnp::schema::Type::UINT32 && whole && number <= UINT32_MAX) {
    params.set(field, number);
    return {};
  }
  return web_usage("'" + value + "' is no value of the parameter '" + key + "'");
}

std::optional<capnp::StructSchema::Field> rows_of(capnp::InterfaceSchema::Method method) {
  std::optional<capnp::StructSchema::Field> rows;
  for (const auto field : method.getResultType().getFields()) {
    const auto type = field.getType();
    if (!type.isList() || !type.asList().getElementType().isStruct()) continue;
    if (rows) return std::nullopt;
    rows = field;
  }
  return rows;
}

Result<std::set<std::string>> keys_asked(std::string_view value, capnp::StructSchema::Field rows) {
  const std::vector<std::string> known = schema::json_keys(rows.getType().asList().getElementType().asStruct());
  std::set<std::string> keys;
  for (size_t from = 0; from <= value.size();) {
    const size_t comma = std::min(value.find(',', from), value.size());
    const std::string key(value.substr(from, comma - from));
    from = comma + 1;
    if (std::find(known.begin(), known.end(), key) != known.end()) {
      keys.insert(key);
      continue;
    }
    std::string all;
    for (const std::string& one : known) all += (all.empty() ? "" : ", ") + one;
    return web_usage("there is no field '" + key + "'; there are " + all);
  }
  return keys;
}

Status set_params(capnp::DynamicStruct::Builder params, capnp::InterfaceSchema::Method method,
                  std::string_view query, std::set<std::string>& keys) {
  const auto rows = rows_of(method);
  const capnp::StructSchema fields = asked_fields(method);
  auto target = params;
  if (fields != params.getSchema())
    target = params.init(params.getSchema().getFields()[0]).as<capnp::DynamicStruct>();
  for (const auto& [key, value] : query_parts(query)) {
    std::string known;
    bool found = false;
    for (const auto field : fields.getFields()) {
      const std::string name = schema::snake_case(field.getProto().getName().cStr());
      known += (known.empty() ? "" : ", ") + name;
      if (name != key) continue;
      found = true;
      TERRACE_RETURN_IF_ERROR(set_field(target, field, key, value));
    }
    if (rows) known += known.empty() ? "fields" : ", fields";
    if (rows && key == "fields") {
      found = true;
      TERRACE_ASSIGN_OR_RETURN(keys, keys_asked(value, *rows));
    }
    if (!found)
      return web_usage("there is no parameter '" + key + "'; there " +
                       (known.empty() ? std::string("is none") : "are " + known));
  }
  return {};
}

void bound_rows(capnp::DynamicStruct::Builder params, capnp::InterfaceSchema::Method method) {
  const capnp::StructSchema fields = asked_fields(method);
  auto target = params;
  if (fields != params.getSchema())
    target = params.get(params.getSchema().getFields()[0]).as<capnp::DynamicStruct>();
  for (const auto field : fields.getFields()) {
    if (std::string_view(field.getProto().getName().cStr()) != "limit") continue;
    const uint32_t asked = target.get(field).as<uint32_t>();
    target.set(field, asked == 0 || asked > web_rows_max ? web_rows_max : asked);
  }
}

bool waits(capnp::DynamicStruct::Reader params, capnp::InterfaceSchema::Method method) {
  const auto fields = asked_fields(method).getFields();
  for (const auto field : fields) {
    if (std::string_view(field.getProto().getName().cStr()) != "waitMs") continue;
    const auto asked = params.get(params.getSchema().getFields()[0]).as<capnp::DynamicStruct>();
    return asked.get(field).as<uint32_t>() != 0;
  }
  return false;
}

}  // namespace terrace::daemon
