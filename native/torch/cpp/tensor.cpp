// Tensors over foreign memory, modes and random generators.

#include "border.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

using namespace flambeau;

namespace {

// How autocast was before, on this thread.
struct Autocast {
  at::DeviceType device;
  bool is_enabled = at::autocast::is_autocast_enabled(device);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
};

// The generator of the CPU, or of the GPU of that number where it is not negative.
at::Generator generator_of(int gpu) {
  if (gpu < 0) return at::detail::getDefaultCPUGenerator();
  return at::globalContext().defaultGenerator(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu)));
}

}  // namespace

extern "C" {

void flambeau_free_text(char* text) noexcept {
  free(text);
}

// A tensor over memory that `drop(context)` gives back once the last tensor over it is gone. Null strides: contiguous.
char* flambeau_tensor_over(
    void* data,
    const int64_t* sizes,
    const int64_t* strides,
    size_t num_dims,
    int scalar_type,
    void (*drop)(void*),
    void* context,
    TensorPtr* result) {
  return guarded([&] {
    auto options = at::TensorOptions().device(at::kCPU).dtype(static_cast<at::ScalarType>(scalar_type));
    auto maker = at::for_blob(data, at::IntArrayRef(sizes, num_dims));
    maker.deleter([drop, context](void*) { drop(context); }).options(options);
    if (strides != nullptr) maker.strides(at::IntArrayRef(strides, num_dims));
    *result = new at::Tensor(maker.make_tensor());
  });
}

// The same number for handles of one object, so that data set on one is the other's.
size_t flambeau_identity(ConstTensorPtr tensor) noexcept {
  return reinterpret_cast<size_t>(tensor->unsafeGetTensorImpl());
}

// Gives a tensor the data of another; it stays the object that it is.
char* flambeau_set_data(TensorPtr tensor, ConstTensorPtr data) {
  return guarded([&] { tensor->set_data(*data); });
}

// The state of a generator as a tensor of bytes.
char* flambeau_generator_state(int gpu, TensorPtr* result) {
  return guarded([&] {
    auto generator = generator_of(gpu);
    std::lock_guard<std::mutex> lock(generator.mutex());
    *result = new at::Tensor(generator.get_state());
  });
}

char* flambeau_set_generator_state(int gpu, ConstTensorPtr state) {
  return guarded([&] {
    auto generator = generator_of(gpu);
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(*state);
  });
}

// Seeds one generator alone.
char* flambeau_seed_generator(int gpu, uint64_t seed) {
  return guarded([&] {
    auto generator = generator_of(gpu);
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  });
}

// Inference mode on this thread until it is given back, on the same thread and in reverse order.
void* flambeau_enter_inference_mode() noexcept {
  return new c10::InferenceMode(true);
}

// Autocast to a type on this thread until it is given back, on the same thread and in reverse order.
Autocast* flambeau_enter_autocast(bool on_gpu, int scalar_type) noexcept {
  auto* before = new Autocast{on_gpu ? at::kCUDA : at::kCPU};
  at::autocast::set_autocast_enabled(before->device, true);
  at::autocast::set_autocast_dtype(before->device, static_cast<at::ScalarType>(scalar_type));
  at::autocast::increment_nesting();
  return before;
}

// The outermost one drops the weights that were cast.
void flambeau_leave_autocast(Autocast* before) noexcept {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(before->device, before->dtype);
  at::autocast::set_autocast_enabled(before->device, before->is_enabled);
  delete before;
}

// Whether autocast is on for the device of a tensor.
bool flambeau_is_autocasting(ConstTensorPtr tensor) noexcept {
  const auto type = tensor->device().type();
  return at::autocast::is_autocast_available(type) && at::autocast::is_autocast_enabled(type);
}

void flambeau_leave_inference_mode(void* guard) noexcept {
  delete static_cast<c10::InferenceMode*>(guard);
}
}
