// SPDX-License-Identifier: Apache-2.0
// SQL from the field lists of rows (daemon/model/row_fields.h): tables, statements, parameters, columns.
//
// Place     Within daemon/store, below the reader and the writer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/store/row_codec.h"
#include "daemon/store/sqlite_handle.h"

namespace terrace::daemon {

// Names, types and question marks of a row's columns, without the checksum that ends each table.
class ColumnTexts {
 public:
  void integer(const char* name, uint64_t) { add(name, "INTEGER"); }
  void random(const char* name, uint64_t) { add(name, "INTEGER"); }
  void truth(const char* name, bool) { add(name, "INTEGER"); }
  void id(const char* name, auto) { add(name, "INTEGER"); }
  void small(const char* name, auto, auto) { add(name, "INTEGER"); }
  void name(const char* name, const std::string&) { add(name, "TEXT"); }
  void text(const char* name, const std::string&, size_t) { add(name, "TEXT"); }
  void extents(const char* name, const std::vector<Extent>&) { add(name, "BLOB"); }

  std::string names, marks, definitions;  // "id, serial"; "?,?"; "id INTEGER NOT NULL,\n"

 private:
  void add(const char* name, const char* type) {
    names += (names.empty() ? "" : ", ") + std::string(name);
    marks += marks.empty() ? "?" : ",?";
    definitions += "  " + std::string(name) + " " + type + " NOT NULL,\n";
  }
};

template <typename Row>
ColumnTexts key_texts() {
  ColumnTexts texts;
  const Row row;
  Stored<Row>::key(texts, row);
  return texts;
}
template <typename Row>
ColumnTexts column_texts() {
  ColumnTexts texts;
  const Row row;
  Stored<Row>::key(texts, row);
  Stored<Row>::fields(texts, row);
  return texts;
}
template <>
inline ColumnTexts column_texts<MetaRow>() {
  ColumnTexts texts;
  const StoreSeal seal;
  const MetaRow row;
  MetaFields::fields(texts, seal, row);
  return texts;
}

// The columns of `meta` in an older version of the schema: SealFields4 up to version 4, SealFields in version 5.
template <typename Seal>
ColumnTexts older_meta_column_texts() {
  ColumnTexts texts;
  const StoreSeal seal;
  const MetaRow row;
  Seal::fields(texts, seal);
  Stored<MetaRow>::fields(texts, row);
  return texts;
}

template <typename Row>
std::string select_sql() {
  return "SELECT " + column_texts<Row>().names + ", crc FROM " + Stored<Row>::table;
}

// Binds the parameters of one row in the order of its columns.
class Binder {
 public:
  // `scratch` holds what is bound by address until the statement has run.
  Binder(Statement& statement, std::vector<std::byte>& scratch) : statement_(statement), scratch_(scratch) {}
  void integer(const char*, uint64_t value) { statement_.bind(value); }
  void random(const char*, uint64_t value) { statement_.bind(value); }
  void truth(const char*, bool value) { statement_.bind(uint64_t{value}); }
  void id(const char*, auto value) { statement_.bind(value.value); }
  void small(const char*, auto value, auto) { statement_.bind(static_cast<uint64_t>(value)); }
  void name(const char*, const std::string& value) { statement_.bind(std::string_view(value)); }
  void text(const char*, const std::string& value, size_t) { statement_.bind(std::string_view(value)); }
  void extents(const char*, const std::vector<Extent>& list) {
    encode_extents(list, scratch_);
    statement_.bind(std::span<const std::byte>(scratch_));
  }

 private:
  Statement& statement_;
  std::vector<std::byte>& scratch_;
};

// The columns of one row, left to right; remembers whether all were readable. Values are judged by validate().
class ColumnReader {
 public:
  explicit ColumnReader(const Statement& statement) : statement_(statement) {}
  void integer(const char*, uint64_t& value) { sound_ &= statement_.read(column_++, value); }
  void random(const char* name, uint64_t& value) { integer(name, value); }
  void truth(const char* name, bool& value) { value = byte(name, 1) == 1; }
  template <typename Id>
  void id(const char* name, Id& value) {
    integer(name, value.value);
  }
  template <typename Enum>
  void small(const char* name, Enum& value, Enum) {
    value = static_cast<Enum>(byte(name, UINT8_MAX));
  }
  void name(const char* name, std::string& value) { text(name, value, limits::name_bytes_max); }
  void text(const char*, std::string& value, size_t bytes_max) {
    sound_ &= statement_.read_text(column_++, bytes_max, value);
  }
  void extents(const char*, std::vector<Extent>& list) {
    std::span<const std::byte> bytes;
    sound_ &= statement_.read_blob(column_++, limits::lease_extents_max * extent_bytes, bytes);
    Result<std::vector<Extent>> decoded = decode_extents(bytes);
    sound_ &= decoded.ok();
    if (decoded.ok()) list = std::move(decoded).value();
  }
  bool sound() const { return sound_; }

 private:
  uint8_t byte(const char* name, uint64_t last) {
    uint64_t value = 0;
    integer(name, value);
    sound_ &= value <= last;
    return static_cast<uint8_t>(value);
  }
  const Statement& statement_;
  int column_ = 0;
  bool sound_ = true;
};

}  // namespace terrace::daemon
