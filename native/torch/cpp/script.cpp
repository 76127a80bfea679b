// TorchScript modules: their tensors by name, forward, and archives without weights.

#include "border.h"

#include <algorithm>
#include <set>
#include <sstream>

#include <ATen/ops/zeros.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

using namespace flambeau;
using torch::jit::IValue;
using torch::jit::Module;

namespace {

// Bytes in memory, read without a copy of the whole.
class MemoryReader : public caffe2::serialize::ReadAdapterInterface {
 public:
  MemoryReader(const char* data, size_t size) : data_(data), size_(size) {}

  size_t size() const override {
    return size_;
  }

  size_t read(uint64_t position, void* target, size_t count, const char*) const override {
    if (position >= size_) return 0;
    count = std::min<size_t>(count, size_ - position);
    std::memcpy(target, data_ + position, count);
    return count;
  }

 private:
  const char* data_;
  size_t size_;
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool is_buffer;
};

// Parameters, buffers, then children: the order of state_dict.
void collect(const Module& module, const std::string& prefix, std::vector<NamedTensor>& found) {
  auto type = module.type();
  auto object = module._ivalue();
  for (bool buffers : {false, true}) {
    for (size_t slot = 0; slot < type->numAttributes(); ++slot) {
      if (!(buffers ? type->is_buffer(slot) : type->is_parameter(slot))) continue;
      const IValue& value = object->getSlot(slot);
      if (value.isTensor() && value.toTensor().defined()) {
        found.push_back({prefix + type->getAttributeName(slot), value.toTensor(), buffers});
      }
    }
  }
  for (size_t slot = 0; slot < type->numAttributes(); ++slot) {
    const auto& attribute = type->getAttribute(slot);
    if (attribute->is_module()) {
      collect(Module(object->getSlot(slot).toObject()), prefix + type->getAttributeName(slot) + ".", found);
    }
  }
}

struct Script {
  Module module;
  std::vector<NamedTensor> tensors;
};

// What forward returned. The kinds are those of Rust's `OutputKind`.
enum OutputKind { kTensor = 0, kTuple = 1, kList = 2, kNamedTuple = 3, kDict = 4, kOther = 5 };

struct Output {
  int kind;
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  // Of what is no tensor: its name in Python.
  std::string other;
};

std::string python_type(const IValue& value) {
  if (value.isNone()) return "NoneType";
  if (value.isInt()) return "int";
  if (value.isDouble()) return "float";
  if (value.isBool()) return "bool";
  if (value.isString()) return "str";
  if (value.isTuple()) return "tuple";
  if (value.isList()) return "list";
  if (value.isGenericDict()) return "dict";
  return value.tagKind();
}

void add(Output& output, const std::string& name, const IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) {
    if (output.other.empty()) {
      output.kind = kOther;
      output.other = python_type(value) + " as " + name;
    }
    return;
  }
  output.names.push_back(name);
  output.tensors.push_back(value.toTensor());
}

Output unpack(const IValue& value) {
  Output output{kOther, {}, {}, ""};
  if (value.isTensor()) {
    output.kind = kTensor;
    add(output, "", value);
  } else if (value.isTuple()) {
    auto tuple = value.toTuple();
    auto schema = tuple->type()->schema();
    output.kind = schema ? kNamedTuple : kTuple;
    for (size_t i = 0; i < tuple->size(); ++i) {
      auto name = schema ? schema->arguments()[i].name() : "_" + std::to_string(i + 1);
      add(output, name, tuple->elements()[i]);
    }
  } else if (value.isList()) {
    output.kind = kList;
    auto list = value.toList();
    for (size_t i = 0; i < list.size(); ++i) add(output, "_" + std::to_string(i + 1), list.get(i));
  } else if (value.isGenericDict()) {
    output.kind = kDict;
    for (const auto& item : value.toGenericDict()) {
      std::ostringstream key;
      if (item.key().isString()) {
        key << item.key().toStringRef();
      } else {
        key << item.key();
      }
      add(output, key.str(), item.value());
    }
  } else {
    output.other = python_type(value);
  }
  return output;
}

IValue pack(int kind, const ConstTensorPtr* tensors, const char* const* names, size_t count) {
  switch (kind) {
    case kTensor:
      return *tensors[0];
    case kList:
      return c10::List<at::Tensor>(tensors_of(tensors, count));
    case kDict: {
      c10::Dict<std::string, at::Tensor> dict;
      for (size_t i = 0; i < count; ++i) dict.insert(names[i], *tensors[i]);
      return dict;
    }
    default: {
      std::vector<IValue> elements;
      for (size_t i = 0; i < count; ++i) elements.emplace_back(*tensors[i]);
      return c10::ivalue::Tuple::create(std::move(elements));
    }
  }
}

// The optimizing executor differentiates and fuses graphs by formulas of its own, which give other last bits than
// eager torch. Without it every operator runs, and is recorded for backward, as in Python. A script may set whether the
// thread records; that ends with the call.
IValue run(Module& module, std::vector<IValue> inputs) {
  at::AutoGradMode as_before(at::GradMode::is_enabled());
  torch::jit::GraphOptimizerEnabledGuard unoptimized(false);
  return module.forward(std::move(inputs));
}

// Has the constants of a graph that name a device, or lie on it, name or lie on another.
void move_constants(torch::jit::Block* block, const at::Device& from, const at::Device& to) {
  for (auto* node : block->nodes()) {
    for (auto* inner : node->blocks()) move_constants(inner, from, to);
    if (node->kind() != torch::jit::prim::Constant || !node->hasAttribute(torch::jit::attr::value)) continue;
    const auto form = node->kindOf(torch::jit::attr::value);
    if (form == torch::jit::AttributeKind::t && node->t(torch::jit::attr::value).device() == from) {
      node->t_(torch::jit::attr::value, node->t(torch::jit::attr::value).to(to));
    } else if (
        node->output()->type() == c10::DeviceObjType::get() && form == torch::jit::AttributeKind::s &&
        at::Device(node->s(torch::jit::attr::value)) == from) {
      node->s_(torch::jit::attr::value, to.str());
    }
  }
}

// Takes a name and bytes.
using Take = void (*)(void* context, const char* name, size_t length, const char* data, size_t size);

// Whether a file of an archive may hold code, by the end of its name.
bool may_hold_code(const std::string& name) {
  const auto dot = name.rfind('.');
  auto end = dot == std::string::npos ? "" : name.substr(dot);
  std::transform(end.begin(), end.end(), end.begin(), [](unsigned char c) { return std::tolower(c); });
  return end == ".py" || end == ".pkl" || end == ".json";
}

// The operators of a block and of those inside it, and, of objects that C++ made, the names of their classes.
void collect_operators(const torch::jit::Block* block, std::set<std::string>& found) {
  for (const auto* node : block->nodes()) {
    found.insert(node->kind().toQualString());
    for (const auto* output : node->outputs()) {
      const auto type = output->type()->annotation_str();
      if (type.find("torch.classes") != std::string::npos) found.insert(type);
    }
    for (const auto* inner : node->blocks()) collect_operators(inner, found);
  }
}

at::Device device_of(int gpu) {
  return gpu < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
}

// Empties tensors to one element of memory each for as long as it lives.
class Hollow {
 public:
  explicit Hollow(std::vector<at::Tensor> tensors) {
    at::NoGradGuard no_grad;
    for (auto& tensor : tensors) {
      auto known = std::any_of(
          kept_.begin(), kept_.end(), [&](const auto& kept) { return kept.first.is_same(tensor); });
      if (known) continue;
      kept_.emplace_back(tensor, tensor.detach());
      tensor.set_data(at::zeros({}, tensor.options().requires_grad(false)).expand(tensor.sizes()));
    }
  }

  ~Hollow() {
    at::NoGradGuard no_grad;
    for (auto& [tensor, data] : kept_) tensor.set_data(data);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

}  // namespace

extern "C" {

// Gives the names and sizes of the files of an archive, and the bytes of those that may hold code, as a load finds them.
char* flambeau_script_files(const char* data, size_t size, void* context, Take take) {
  return guarded([&] {
    caffe2::serialize::PyTorchStreamReader reader(std::make_shared<MemoryReader>(data, size));
    for (const auto& name : reader.getAllRecords()) {
      if (!may_hold_code(name)) {
        take(context, name.data(), name.size(), nullptr, reader.getRecordSize(name));
        continue;
      }
      const auto [bytes, num_bytes] = reader.getRecord(name);
      take(context, name.data(), name.size(), static_cast<const char*>(bytes.get()), num_bytes);
    }
  });
}

// Gives the names of the operators that any function of the archive calls.
char* flambeau_script_operators(Script* script, void* context, Take take) {
  return guarded([&] {
    std::set<std::string> found;
    for (auto* function : script->module._ivalue()->compilation_unit()->get_functions()) {
      function->ensure_defined();
      if (auto* graph_function = torch::jit::tryToGraphFunction(*function)) {
        collect_operators(graph_function->graph()->block(), found);
      } else {
        found.insert(function->qualname().qualifiedName());
      }
    }
    for (const auto& name : found) take(context, name.data(), name.size(), nullptr, 0);
  });
}

// Loads an archive. `extra_name` is a file that Flambeau may have put into it; its text is "" where it is not there.
char* flambeau_script_load(
    const char* data, size_t size, const char* extra_name, Script** result, char** extra_text) {
  return guarded([&] {
    torch::jit::ExtraFilesMap extra{{extra_name, ""}};
    auto module = torch::jit::load(std::make_shared<MemoryReader>(data, size), at::Device(at::kCPU), extra);
    auto script = std::make_unique<Script>();
    collect(module, "", script->tensors);
    script->module = std::move(module);
    *extra_text = copy_text(extra[extra_name]);
    *result = script.release();
  });
}

void flambeau_script_free(Script* script) noexcept {
  delete script;
}

size_t flambeau_script_num_tensors(const Script* script) noexcept {
  return script->tensors.size();
}

// The tensor itself, not a copy; `name` lives as long as the script.
TensorPtr flambeau_script_tensor(const Script* script, size_t index, const char** name, bool* is_buffer) noexcept {
  const auto& entry = script->tensors[index];
  *name = entry.name.c_str();
  *is_buffer = entry.is_buffer;
  return new at::Tensor(entry.tensor);
}

// Moves all tensors of a module from one device to another (a GPU's number, -1 for the CPU): parameters and buffers, which
// stay the objects that they are, other attributes, and the constants of its functions, those that name the device too: a
// traced module has them where its source asked for the device of a tensor. A function that has run keeps those it ran with.
char* flambeau_script_move(Script* script, int from, int to) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const auto source = device_of(from), target = device_of(to);
    if (source == target) return;
    for (const IValue& value : script->module.attributes()) {
      if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().device() != source) continue;
      value.toTensor().set_data(value.toTensor().to(target));
    }
    for (auto* function : script->module._ivalue()->compilation_unit()->get_functions()) {
      function->ensure_defined();
      if (auto* graph_function = torch::jit::tryToGraphFunction(*function)) {
        move_constants(graph_function->graph()->block(), source, target);
      }
    }
  });
}

char* flambeau_script_train(Script* script, bool training) {
  return guarded([&] { script->module.train(training); });
}

// Gives the names of forward's arguments, each with size 1 where it may be left out.
char* flambeau_script_arguments(const Script* script, void* context, Take take) {
  return guarded([&] {
    const auto& arguments = script->module.get_method("forward").function().getSchema().arguments();
    for (auto argument = arguments.begin() + 1; argument != arguments.end(); ++argument) {
      take(context, argument->name().data(), argument->name().size(), nullptr, argument->default_value() ? 1 : 0);
    }
  });
}

char* flambeau_script_forward(Script* script, const ConstTensorPtr* inputs, size_t num_inputs, Output** result) {
  return guarded([&] {
    std::vector<IValue> arguments;
    arguments.reserve(num_inputs);
    for (size_t i = 0; i < num_inputs; ++i) arguments.emplace_back(*inputs[i]);
    *result = new Output(unpack(run(script->module, std::move(arguments))));
  });
}

// forward(output), forward(output, label) or forward(output, (label, label, ...)).
char* flambeau_script_loss(
    Script* script,
    int kind,
    const ConstTensorPtr* tensors,
    const char* const* names,
    size_t count,
    const ConstTensorPtr* labels,
    size_t num_labels,
    Output** result) {
  return guarded([&] {
    std::vector<IValue> arguments{pack(kind, tensors, names, count)};
    if (num_labels == 1) arguments.emplace_back(*labels[0]);
    if (num_labels > 1) arguments.push_back(pack(kTuple, labels, nullptr, num_labels));
    *result = new Output(unpack(run(script->module, std::move(arguments))));
  });
}

int flambeau_output_kind(const Output* output, const char** other) noexcept {
  *other = output->other.c_str();
  return output->kind;
}

size_t flambeau_output_len(const Output* output) noexcept {
  return output->tensors.size();
}

TensorPtr flambeau_output_tensor(const Output* output, size_t index, const char** name) noexcept {
  *name = output->names[index].c_str();
  return new at::Tensor(output->tensors[index]);
}

void flambeau_output_free(Output* output) noexcept {
  delete output;
}

// Writes the module in evaluation mode, its tensors but those named in `fixed` emptied to one element each.
char* flambeau_script_save_hollow(
    Script* script,
    const char* path,
    const char* const* fixed,
    size_t num_fixed,
    const char* extra_name,
    const char* extra_text) {
  return guarded([&] {
    std::set<std::string> kept(fixed, fixed + num_fixed);
    std::vector<at::Tensor> tensors;
    for (const auto& entry : script->tensors) {
      if (kept.count(entry.name) == 0) tensors.push_back(entry.tensor);
    }
    Hollow hollow(std::move(tensors));
    script->module.eval();
    script->module.save(path, {{extra_name, extra_text}});
  });
}
}
