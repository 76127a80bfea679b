// torch's kernels for CUDA, computed on the CPU, on the memory of the stand-in's GPUs.
//
// Every operation that torch has a kernel of for CUDA gets another one here: it waits for the stream that the kernel would
// be launched in, and for nothing else, and has the CPU's kernel work on the same memory. So what is not ordered before that
// stream's work is not seen. Allocators, streams, events, copies between host and GPU and autograd's threads are torch's own
// for CUDA.

#include <cstring>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

namespace {

using Stack = torch::jit::Stack;

// What needs no kernel, but is about where memory is.
const std::unordered_set<std::string> kOwn = {
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::as_strided",
    "aten::view",
    "aten::_reshape_alias",
    "aten::resize_",
    "aten::set_",
    "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset",
    "aten::set_.source_Tensor",
    "aten::_local_scalar_dense",
    "aten::record_stream",
    "aten::is_set_to",
    "aten::_cudnn_init_dropout_state",
};

// These take tensors in main memory beside those of a GPU: indices, and what is copied.
const std::unordered_set<std::string> kMixed = {"aten::index.Tensor", "aten::index.Tensor_out",
                                                "aten::_index_put_impl_", "aten::index_put_", "aten::_foreach_copy_"};

// Waits for what the calling thread has queued in its present stream.
void drain_present_stream(c10::Device device) {
  using Drain = void (*)(void*, int);
  static const auto drain = reinterpret_cast<Drain>(dlsym(RTLD_DEFAULT, "cuda_stand_in_drain"));
  TORCH_INTERNAL_ASSERT(drain != nullptr);
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  drain(guard.getStream(device).native_handle(), device.index());
}

// The arguments of an operation as the CPU's kernel takes them.
class Arguments {
 public:
  Arguments(const std::string& name, Stack& stack, size_t count) {
    for (size_t index = stack.size() - count; index < stack.size(); ++index) {
      note(stack[index]);
    }
    if (!device_) {
      other_.reset();
    }
    TORCH_CHECK(!other_ || kMixed.count(name) != 0, "Expected all tensors to be on the same device, but got some on ",
                *other_, " and some on ", *device_, ", in ", name);
    for (size_t index = stack.size() - count; index < stack.size(); ++index) {
      stack[index] = on_cpu(stack[index]);
    }
  }

  // Where the operation takes place: where its tensors are, or where it makes one.
  c10::Device device() const {
    return device_ ? *device_ : c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
  }

  // What the CPU's kernel returned, as CUDA's would.
  c10::IValue on_device(const c10::IValue& value) {
    if (value.isTensor()) {
      return on_device(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) {
        list.push_back(on_device(tensor));
      }
      return list;
    }
    return value;
  }

  // An output that the kernel had to make larger lies elsewhere now.
  void settle() {
    for (auto& [alias, whole] : aliases_) {
      const at::Tensor now(alias);
      if (now.sizes() != whole.sizes()) {
        whole.resize_(now.sizes());
        write(whole, now);
      }
    }
  }

 private:
  void note(const c10::IValue& value) {
    if (value.isTensor()) {
      note(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        note(tensor);
      }
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        note(tensor.value_or(at::Tensor()));
      }
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      device_ = value.toDevice();
    }
  }

  void note(const at::Tensor& tensor) {
    // A number may come from main memory.
    if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) {
      return;
    }
    if (tensor.is_cuda() && (!device_ || *device_ == tensor.device())) {
      device_ = tensor.device();
    } else {
      other_ = tensor.device();
    }
  }

  c10::IValue on_cpu(const c10::IValue& value) {
    if (value.isTensor()) {
      return on_cpu(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) {
        list.push_back(on_cpu(tensor));
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        list.push_back(tensor ? std::optional(on_cpu(*tensor)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice()) {
      return c10::Device(c10::kCPU);
    }
    // The CPU's generator stands for the GPU's.
    return value.isGenerator() ? c10::IValue() : value;
  }

  // A tensor of the CPU on the same memory; for an output that is yet without elements, one that the kernel can make larger.
  at::Tensor on_cpu(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) {
      return tensor;
    }
    const auto options = tensor.options().device(c10::kCPU).requires_grad(false);
    const auto alias = tensor.numel() == 0
                           ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
                           : at::for_blob(tensor.data_ptr(), tensor.sizes())
                                 .strides(tensor.strides())
                                 .options(options)
                                 .target_device(c10::Device(c10::kCPU))
                                 .make_tensor();
    aliases_.emplace(alias.getIntrusivePtr(), tensor);
    return alias;
  }

  at::Tensor on_device(const at::Tensor& made) {
    if (!made.defined()) {
      return made;
    }
    const auto found = aliases_.find(made.getIntrusivePtr());
    if (found != aliases_.end()) {
      return found->second;
    }
    // Also what is a view of an argument is given memory of its own: such operations are composed of others.
    const auto dense = made.is_non_overlapping_and_dense() ? made : made.contiguous();
    auto result =
        at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(device()).pinned_memory(false));
    write(result, dense);
    return result;
  }

  // Both are dense, with the same strides. The target's memory may have been another thread's a moment ago, which has given
  // the stream work on it before it gave it back.
  static void write(const at::Tensor& target, const at::Tensor& source) {
    if (source.numel() > 0) {
      drain_present_stream(target.device());
      std::memcpy(target.data_ptr(), source.data_ptr(), source.nbytes());
    }
  }

  struct Hash {
    size_t operator()(const c10::intrusive_ptr<c10::TensorImpl>& pointer) const {
      return std::hash<const void*>()(pointer.get());
    }
  };

  // The GPU, and where tensors are that should be there too.
  std::optional<c10::Device> device_;
  std::optional<c10::Device> other_;
  std::unordered_map<c10::intrusive_ptr<c10::TensorImpl>, at::Tensor, Hash> aliases_;
};

void run_on_cpu(const c10::OperatorHandle& operation, Stack* stack) {
  const auto& schema = operation.schema();
  const auto name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  Arguments arguments(name, *stack, schema.arguments().size());
  drain_present_stream(arguments.device());
  {
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset);
    operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  arguments.settle();
  for (size_t index = stack->size() - schema.returns().size(); index < stack->size(); ++index) {
    (*stack)[index] = arguments.on_device((*stack)[index]);
  }
}

// Between host and GPU, and between equal layouts, torch copies without a kernel.
at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const bool is_plain = self.dtype() == source.dtype() && self.sizes() == source.sizes() &&
                        self.strides() == source.strides() && self.is_non_overlapping_and_dense();
  if (self.is_cuda() && source.is_cuda() && !is_plain) {
    static const auto operation = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    Stack stack = {self, source, non_blocking};
    run_on_cpu(operation, &stack);
    return self;
  }
  return at::native::copy_(self, source, non_blocking);
}

// An operation with another kernel is not worth a warning here.
class Silence : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Registered for as long as the process lives.
void take_over() {
  static auto& registrations = *new std::vector<c10::RegistrationHandleRAII>;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto key = c10::DispatchKey::CUDA;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto operation = dispatcher.findOp(name);
    const auto full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (!operation || !operation->hasKernelForDispatchKey(key) || name.getNamespace() != "aten" || kOwn.count(full) != 0) {
      continue;
    }
    registrations.push_back(dispatcher.registerImpl(
        name, key, c10::KernelFunction::makeFromBoxedFunction<&run_on_cpu>(), std::nullopt, nullptr, "stand-in"));
  }
  registrations.push_back(dispatcher.registerImpl(
      {"aten::copy_", ""}, key, c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(copy)), std::nullopt, nullptr,
      "stand-in"));
}

[[maybe_unused]] const bool is_registered = [] {
  take_over();
  // Some of CUDA's operations have no counterpart on the CPU; without them, torch chooses those that have.
  auto& context = at::globalContext();
  context.setUserEnabledCuDNN(false);
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
  return true;
}();

}  // namespace
