// SPDX-License-Identifier: Apache-2.0
// `terrace checkpoint list|show|verify|export|import|delete`: a directory of checkpoints. No daemon is asked.
#include "cli/terminal/verb.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/terminal/interrupt.h"
#include "cli/terminal/local_time.h"
#include "terrace/checkpoint.h"

namespace terrace::cli {
namespace {

struct CheckpointArguments {
  std::string directory, name, file;
  std::vector<std::string> names;    // to delete
  std::vector<std::string> tensors;  // to export
  bool force = false;
};

// Where nothing is to be made, a directory that does not exist is an error.
Result<std::unique_ptr<CheckpointDirectory>> open_existing(const CheckpointArguments& arguments) {
  return CheckpointDirectory::open(arguments.directory, false);
}

nlohmann::json info_json(const CheckpointInfo& info) {
  return {{"name", info.name},
          {"tensors", info.tensors},
          {"tensor_bytes", info.tensor_bytes},
          {"file_bytes", info.file_bytes},
          {"created_unix_ns", info.created_unix_ns},
          {"file", info.file}};
}

template <typename Options = TransferOptions>
Options transfer_options(Progress& progress) {
  Options options;
  options.progress = [&progress](uint64_t done, uint64_t total) { progress.update(done, total); };
  options.cancelled = [] { return InterruptGuard::interrupted(); };
  return options;
}

Status list_checkpoints(Context& context, const CheckpointArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto directory, open_existing(arguments));
  TERRACE_ASSIGN_OR_RETURN(const CheckpointList list, directory->list());
  if (!list.damaged.empty()) context.exit_code = exit_mismatch;
  if (context.json) {
    nlohmann::json checkpoints = nlohmann::json::array(), damaged = nlohmann::json::array();
    for (const CheckpointInfo& info : list.checkpoints) checkpoints.push_back(info_json(info));
    for (const auto& each : list.damaged)
      damaged.push_back({{"name", each.name}, {"reason", each.error.detail}});
    print_json({{"checkpoints", checkpoints},
                {"damaged", damaged},
                {"half_written_removed", list.half_written},
                {"being_written", list.being_written}});
    return {};
  }
  std::vector<std::vector<std::string>> rows;
  for (const CheckpointInfo& info : list.checkpoints)
    rows.push_back({info.name, std::to_string(info.tensors), format_size(info.tensor_bytes),
                    format_moment(info.created_unix_ns)});
  print_table({"NAME", "TENSORS", "SIZE", "CREATED"}, rows);
  std::string text;
  for (const auto& each : list.damaged) text += "damaged, not offered: " + printable(each.error.detail) + "\n";
  if (list.being_written > 0) text += count_text(list.being_written, "checkpoint") + " being written\n";
  if (list.half_written > 0)
    text += count_text(list.half_written, "half-written checkpoint") + " of dead writers removed\n";
  print_text(text);
  return {};
}

Status show_checkpoint(const Context& context, const CheckpointArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto directory, open_existing(arguments));
  TERRACE_ASSIGN_OR_RETURN(const CheckpointInfo info, directory->find(arguments.name));
  TERRACE_ASSIGN_OR_RETURN(const SafetensorsIndex index, read_safetensors_index(info.file));
  if (context.json) {
    nlohmann::json document = info_json(info), tensors = nlohmann::json::array();
    for (const SafetensorsEntry& tensor : index.tensors)
      tensors.push_back({{"name", tensor.name},
                         {"dtype", dtype_name(tensor.dtype)},
                         {"shape", tensor.shape.dimensions()},
                         {"bytes", tensor.bytes},
                         {"file_offset", tensor.file_offset}});
    nlohmann::json metadata = nlohmann::json::object();
    for (const auto& [key, value] : index.metadata) metadata[key] = value;
    document["metadata"] = metadata;
    document["contents"] = tensors;
    print_json(document);
    return {};
  }
  print_text(format_block({{"name", info.name},
                           {"created", format_moment(info.created_unix_ns)},
                           {"tensors", std::to_string(info.tensors)},
                           {"size", format_size(info.tensor_bytes)},
                           {"file", printable(info.file)}}));
  for (const auto& [key, value] : index.metadata)
    print_text("  " + printable(key) + ": " + printable(value) + "\n");
  std::vector<std::vector<std::string>> rows;
  for (const SafetensorsEntry& tensor : index.tensors)
    rows.push_back({printable(tensor.name), std::string(dtype_name(tensor.dtype)), tensor.shape.to_string(),
                    format_size(tensor.bytes)});
  print_table({"NAME", "DTYPE", "SHAPE", "SIZE"}, rows);
  return {};
}

Status verify_checkpoint(Context& context, const CheckpointArguments& arguments) {
  const InterruptGuard guard;
  TERRACE_ASSIGN_OR_RETURN(const auto directory, open_existing(arguments));
  Progress progress(context, "verify");
  TERRACE_ASSIGN_OR_RETURN(const CheckpointVerification result,
                           directory->verify(arguments.name, transfer_options(progress)));
  if (!result.damaged.empty()) context.exit_code = exit_mismatch;
  if (context.json) {
    nlohmann::json damaged = nlohmann::json::array();
    for (const auto& part : result.damaged) damaged.push_back({{"begin", part.begin}, {"end", part.end}});
    print_json({{"name", arguments.name},
                {"bytes", result.bytes},
                {"equal", result.damaged.empty()},
                {"damaged", damaged}});
    return {};
  }
  std::string text;
  for (const auto& part : result.damaged)
    text += "bytes " + std::to_string(part.begin) + " to " + std::to_string(part.end) + " are not as written\n";
  if (result.damaged.empty()) text = format_size(result.bytes) + ", all as written\n";
  print_text(text);
  return {};
}

void print_done(const Context& context, const CheckpointInfo& info, const std::string& text) {
  if (context.json)
    print_json(info_json(info));
  else
    print_text(text + ": " + count_text(info.tensors, "tensor") + ", " + format_size(info.file_bytes) + "\n");
}

Status export_checkpoint(const Context& context, const CheckpointArguments& arguments) {
  const InterruptGuard guard;
  TERRACE_ASSIGN_OR_RETURN(const auto directory, open_existing(arguments));
  Progress progress(context, "export");
  auto options = transfer_options<CheckpointExportOptions>(progress);
  options.tensors = arguments.tensors;
  TERRACE_ASSIGN_OR_RETURN(const CheckpointInfo info,
                           directory->export_file(arguments.name, arguments.file, arguments.force, options));
  print_done(context, info, "exported to " + printable(arguments.file));
  return {};
}

Status import_checkpoint(const Context& context, const CheckpointArguments& arguments) {
  const InterruptGuard guard;
  TERRACE_ASSIGN_OR_RETURN(const auto directory, CheckpointDirectory::open(arguments.directory));
  Progress progress(context, "import");
  TERRACE_ASSIGN_OR_RETURN(const CheckpointInfo info,
                           directory->import_file(arguments.file, arguments.name, transfer_options(progress)));
  print_done(context, info, "imported as " + info.name);
  return {};
}

Status delete_checkpoints(const Context& context, const CheckpointArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto directory, open_existing(arguments));
  for (const std::string& name : arguments.names) TERRACE_RETURN_IF_ERROR(directory->remove(name));
  if (context.json) {
    print_json({{"deleted", arguments.names}});
    return {};
  }
  for (const std::string& name : arguments.names) print_text("deleted " + name + "\n");
  return {};
}

}  // namespace

void add_checkpoint_verbs(Command app, Context& context) {
  Command checkpoint = app.add_subcommand("checkpoint", "Checkpoints of tensors in a directory");
  checkpoint.require_subcommand();
  const auto arguments = std::make_shared<CheckpointArguments>();
  const auto verb = [&](const char* name, const char* help) {
    Command made = checkpoint.add_subcommand(name, help);
    made.add_option("--dir", arguments->directory, "The directory of the checkpoints")
        .required()
        .type_name("DIR");
    return made;
  };
  const auto add_name = [&](Command to) {
    to.add_option("name", arguments->name, "The checkpoint").required().type_name("NAME");
  };

  Command list = verb("list", "Those that are complete; removes what dead writers left");
  on_verb(list, context, [&context, arguments] { return list_checkpoints(context, *arguments); });

  Command show = verb("show", "A checkpoint's tensors and metadata");
  add_name(show);
  on_verb(show, context, [&context, arguments] { return show_checkpoint(context, *arguments); });

  Command verify = verb("verify", "Read all of it and compare with its checksums");
  add_name(verify);
  on_verb(verify, context, [&context, arguments] { return verify_checkpoint(context, *arguments); });

  Command out = verb("export", "Copy its safetensors file, checked on the way");
  add_name(out);
  out.add_option("file", arguments->file, "The file to make").required().type_name("FILE");
  out.add_option("--tensor", arguments->tensors, "Only this one; may be given several times")
      .type_name("TENSOR")
      .allow_extra_args(false);
  out.add_flag("--force", arguments->force, "Replace the file where it exists");
  on_verb(out, context, [&context, arguments] { return export_checkpoint(context, *arguments); });

  Command in = verb("import", "Make a checkpoint of a safetensors file");
  in.add_option("file", arguments->file, "The safetensors file").required().type_name("FILE");
  add_name(in);
  on_verb(in, context, [&context, arguments] { return import_checkpoint(context, *arguments); });

  Command away = verb("delete", "Remove checkpoints, damaged ones too");
  away.add_option("names", arguments->names, "The checkpoints").required().type_name("NAME");
  on_verb(away, context, [&context, arguments] { return delete_checkpoints(context, *arguments); });
}

}  // namespace terrace::cli
