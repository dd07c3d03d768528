// SPDX-License-Identifier: Apache-2.0
// Models in place for C: the tensors of a lease's catalog, or of files.
#include "terrace/model.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"

using namespace terrace;
using namespace terrace::c_api;

// Names as C has them, beside the model's.
struct terrace_model {
  explicit terrace_model(std::shared_ptr<const Model> of) : model(std::move(of)) {
    for (const TensorView& tensor : model->tensors()) names.emplace_back(tensor.name);
  }
  const std::shared_ptr<const Model> model;
  std::vector<std::string> names;
};

namespace {

Status give_model(Result<std::shared_ptr<const Model>> model, terrace_model** into) {
  if (!model.ok()) return std::move(model).error();
  *into = new terrace_model(std::move(model).value());
  return {};
}

Status give_tensor(const terrace_model& model, size_t index, terrace_model_tensor* into, const char* where) {
  const TensorView& of = model.model->tensors()[index];
  terrace_model_tensor tensor{};
  tensor.name = model.names[index].c_str();
  tensor.data = of.bytes.data();
  tensor.bytes = of.bytes.size();
  tensor.dtype = static_cast<int>(of.dtype);
  tensor.hint = static_cast<int>(of.hint);
  tensor.rank = of.shape.rank();
  for (uint32_t i = 0; i < of.shape.rank(); ++i) {
    tensor.dimensions[i] = of.shape[i];
    tensor.strides[i] = of.strides[i];
  }
  return give(into, tensor, where);
}

}  // namespace

extern "C" {

terrace_code terrace_model_open(terrace_session* session, uint64_t id, const char* label,
                                terrace_model** model) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_model_open";
    TERRACE_C_NEED(where, session);
    TERRACE_C_NEED(where, model);
    if (id == 0 && text_of(label).empty()) return invalid(where, "neither an id nor a label of a lease");
    TERRACE_ASSIGN_OR_RETURN(auto lease, session->session->attach(LeaseId{id}, id == 0 ? text_of(label) : "",
                                                                  LeaseAccess::read_only));
    return give_model(Model::open(kept_by(session->session, std::move(lease))), model);
  });
}

terrace_code terrace_model_of_lease(terrace_lease* lease, terrace_model** model) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_model_of_lease", lease);
    TERRACE_C_NEED("terrace_model_of_lease", model);
    return give_model(Model::open(lease->lease), model);
  });
}

terrace_code terrace_model_open_files(const char* path, terrace_model** model) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_model_open_files", path);
    TERRACE_C_NEED("terrace_model_open_files", model);
    return give_model(Model::open_files(path), model);
  });
}

size_t terrace_model_count(const terrace_model* model) {
  return model == nullptr ? 0 : model->names.size();
}

terrace_code terrace_model_get(const terrace_model* model, size_t index, terrace_model_tensor* tensor) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_model_get";
    TERRACE_C_NEED(where, model);
    TERRACE_C_NEED(where, tensor);
    if (index >= model->names.size())
      return invalid(where, "there are " + std::to_string(model->names.size()) + " tensors, none is number " +
                                std::to_string(index));
    return give_tensor(*model, index, tensor, where);
  });
}

terrace_code terrace_model_find(const terrace_model* model, const char* name, terrace_model_tensor* tensor) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_model_find";
    TERRACE_C_NEED(where, model);
    TERRACE_C_NEED(where, name);
    TERRACE_C_NEED(where, tensor);
    TERRACE_ASSIGN_OR_RETURN(const TensorView found, model->model->find(name));
    const auto all = model->model->tensors();
    const auto place =
        std::find_if(all.begin(), all.end(), [&](const TensorView& one) { return one.name == found.name; });
    return give_tensor(*model, static_cast<size_t>(place - all.begin()), tensor, where);
  });
}

size_t terrace_model_metadata_count(const terrace_model* model) {
  return model == nullptr ? 0 : model->model->metadata().size();
}

const char* terrace_model_metadata_key(const terrace_model* model, size_t index) {
  return index < terrace_model_metadata_count(model) ? model->model->metadata()[index].first.c_str() : "";
}

const char* terrace_model_metadata_value(const terrace_model* model, size_t index) {
  return index < terrace_model_metadata_count(model) ? model->model->metadata()[index].second.c_str() : "";
}

int terrace_model_takes_stores(const terrace_model* model) {
  return model != nullptr && model->model->takes_stores() ? 1 : 0;
}

terrace_code terrace_model_verify(const terrace_model* model) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_model_verify", model);
    return model->model->verify();
  });
}

void terrace_model_free(terrace_model* model) {
  delete model;
}

}  // extern "C"
