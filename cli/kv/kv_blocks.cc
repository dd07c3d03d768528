// SPDX-License-Identifier: Apache-2.0
// `terrace kv put`, `get` and `erase`: single blocks.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/kv/key_text.h"
#include "cli/kv/kv_place.h"
#include "cli/kv/kv_verbs.h"
#include "cli/terminal/output_file.h"
#include "cli/terminal/verb.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {
namespace {

struct KvBlockArguments {
  std::string where, name_space, key, parent, file, output;
  std::vector<std::string> keys;
  uint64_t ttl_ns = 0;
};

constexpr uint64_t kv_read_bytes = 1 << 20;

// All of a file, or of standard input: at most `bytes_max`, and one more where there are more.
Result<std::string> kv_read_value(const std::string& file, uint64_t bytes_max) {
  const bool from_input = file.empty() || file == "-";
  const std::string shown = from_input ? "standard input" : file;
  UniqueFd opened(from_input ? -1 : ::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!from_input && !opened.valid()) return os_error(errno, "terrace kv put", "cannot open " + file);
  std::string value;
  while (value.size() <= bytes_max) {
    const size_t before = value.size();
    value.resize(before + std::min(kv_read_bytes, bytes_max + 1 - before));
    const ssize_t got =
        ::read(from_input ? STDIN_FILENO : opened.get(), value.data() + before, value.size() - before);
    const int code = errno;
    value.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return value;
    if (got < 0 && code != EINTR) return os_error(code, "terrace kv put", "cannot read " + shown);
  }
  return Error{.code = ErrorCode::limit_exceeded,
               .where = "terrace kv put",
               .detail = shown + " is longer than " + format_size(bytes_max) +
                         ", as long as a block of this space can be ('terrace kv format --max-block')"};
}

Status kv_put(const Context& context, const KvBlockArguments& arguments) {
  constexpr const char* verb = "terrace kv put";
  TERRACE_ASSIGN_OR_RETURN(const std::string key, key_of_text(arguments.key, verb));
  TERRACE_ASSIGN_OR_RETURN(const KvNamespace name_space, KvNamespace::of(arguments.name_space));
  KvPutOptions options;
  std::string parent;
  if (!arguments.parent.empty()) {
    TERRACE_ASSIGN_OR_RETURN(parent, key_of_text(arguments.parent, verb));
  }
  options.parent = parent;
  options.ttl_s = (arguments.ttl_ns + ns_per_s - 1) / ns_per_s;
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, verb));
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv(place, KvUse::writes));
  TERRACE_ASSIGN_OR_RETURN(const KvStat stat, space->stat());
  TERRACE_ASSIGN_OR_RETURN(const std::string value, kv_read_value(arguments.file, stat.max_block_bytes));
  const KvPut put{
      .key = key, .bytes = std::as_bytes(std::span(value.data(), value.size())), .options = options};
  if (Status done = space->put(name_space, put); !done.ok()) {
    Error error = kv_error_at(place, std::move(done).error());
    if (error.code == ErrorCode::already_exists)
      error.detail += "; blocks never change: 'terrace kv erase' it first for other bytes under that key";
    return error;
  }
  if (context.json)
    print_json(
        {{"put", {{"key", text_of_key(key)}, {"namespace", name_space.name()}, {"bytes", value.size()}}}});
  else
    print_text("put " + printable(text_of_key(key)) + ", " + format_size(value.size()) + "\n");
  return {};
}

// The length is asked for first, and another block may have the key by then.
Result<std::string> kv_read_block(KvSpace& space, const KvNamespace& name_space, const std::string& key) {
  for (;;) {
    TERRACE_ASSIGN_OR_RETURN(const uint64_t length, space.length(name_space, key));
    std::string value(length, '\0');
    const Result<uint64_t> got =
        space.get(name_space, {key, std::as_writable_bytes(std::span(value.data(), value.size()))});
    if (got.ok()) {
      value.resize(*got);
      return value;
    }
    if (got.error().code != ErrorCode::invalid_argument) return got.error();
  }
}

Status kv_get(const Context& context, const KvBlockArguments& arguments) {
  constexpr const char* verb = "terrace kv get";
  if (context.json && arguments.output.empty())
    return Error{.code = ErrorCode::invalid_argument,
                 .where = verb,
                 .detail = "a block's bytes are no JSON: say --output FILE, or leave --json out"};
  TERRACE_ASSIGN_OR_RETURN(const std::string key, key_of_text(arguments.key, verb));
  TERRACE_ASSIGN_OR_RETURN(const KvNamespace name_space, KvNamespace::of(arguments.name_space));
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, verb));
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv(place, KvUse::reads));
  Result<std::string> value = kv_read_block(*space, name_space, key);
  if (!value.ok()) return kv_error_at(place, std::move(value).error());
  if (arguments.output.empty()) {
    print_text(*value);
    return {};
  }
  TERRACE_RETURN_IF_ERROR(write_atomically(arguments.output, *value));
  if (context.json)
    print_json({{"got", {{"key", text_of_key(key)}, {"bytes", value->size()}, {"file", arguments.output}}}});
  return {};
}

Status kv_erase(Context& context, const KvBlockArguments& arguments) {
  constexpr const char* verb = "terrace kv erase";
  std::vector<std::string> keys;
  for (const std::string& text : arguments.keys) {
    TERRACE_ASSIGN_OR_RETURN(std::string key, key_of_text(text, verb));
    keys.push_back(std::move(key));
  }
  TERRACE_ASSIGN_OR_RETURN(const KvNamespace name_space, KvNamespace::of(arguments.name_space));
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, verb));
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv(place, KvUse::writes));
  nlohmann::json erased = nlohmann::json::array();
  Status failed;  // the first that was: the others are erased all the same
  for (const std::string& key : keys) {
    Status done = space->erase(name_space, key);
    if (done.ok())
      erased.push_back(text_of_key(key));
    else if (failed.ok())
      failed = kv_error_at(place, std::move(done).error());
  }
  const std::string text = "erased " + count_text(erased.size(), "block") + "\n";
  if (!failed.ok()) {
    fail_with(context, failed.error(), "erased", erased, text);
    return {};
  }
  if (context.json)
    print_json({{"erased", erased}});
  else
    print_text(text);
  return {};
}

}  // namespace

void add_kv_block_verbs(Command kv, Context& context) {
  const auto arguments = std::make_shared<KvBlockArguments>();
  const auto add_key = [&](Command verb) {
    verb.add_option("--key", arguments->key, "The block's key; 0x and hex digits for one that is no text")
        .required()
        .type_name("KEY");
  };
  Command put = kv.add_subcommand("put", "Put a block: a file's bytes, or those of standard input");
  add_kv_where(put, arguments->where);
  put.add_option("file", arguments->file, "The file; - or nothing: standard input").type_name("FILE");
  add_key(put);
  add_kv_namespace(put, arguments->name_space);
  add_duration_option(put, "--ttl", arguments->ttl_ns, "It is gone after that, to the second (default: never)");
  put.add_option("--parent", arguments->parent, "The key of the block before it in the prompt")
      .type_name("KEY");
  on_verb(put, context, [&context, arguments] { return kv_put(context, *arguments); });

  Command get = kv.add_subcommand("get", "A block's bytes, as they are");
  add_kv_where(get, arguments->where);
  add_key(get);
  add_kv_namespace(get, arguments->name_space);
  get.add_option("--output,--out", arguments->output, "Write them to this file (default: standard output)")
      .type_name("FILE");
  on_verb(get, context, [&context, arguments] { return kv_get(context, *arguments); });

  Command erase = kv.add_subcommand("erase", "Erase blocks");
  add_kv_where(erase, arguments->where);
  erase.add_option("--key", arguments->keys, "A block's key; may be repeated")
      .required()
      .allow_extra_args(true)
      .type_name("KEY");
  add_kv_namespace(erase, arguments->name_space);
  on_verb(erase, context, [&context, arguments] { return kv_erase(context, *arguments); });
}

}  // namespace terrace::cli
