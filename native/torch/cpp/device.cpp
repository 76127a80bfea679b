// Devices with their streams and events, through what libtorch has for all kinds of devices: built against a libtorch
// without CUDA, it serves the GPUs of one that has it.

#include "border.h"

#include <cmath>
#include <limits>
#include <memory>

#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

using namespace flambeau;

namespace {

c10::impl::VirtualGuardImpl implementation(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

c10::Device cuda(int index) {
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

// The 2-norm of all tensors together, or with `order` infinity the largest magnitude, in float64 where they lie.
at::Tensor norm_of_all(const std::vector<at::Tensor>& tensors, const at::Scalar& order) {
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(tensors, order, at::kDouble)), order);
}

}  // namespace

extern "C" {

// The file that libtorch's CPU part was loaded from.
char* flambeau_libtorch_path() noexcept {
  Dl_info info;
  const auto* symbol = reinterpret_cast<const void*>(&at::globalContext);
  return copy_text(dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "");
}

// Opens a library for good. Returns null, or why it cannot be opened.
char* flambeau_open_library(const char* path) noexcept {
  return dlopen(path, RTLD_NOW | RTLD_LOCAL) != nullptr ? nullptr : copy_text(dlerror());
}

// Has CUDA's part of libtorch look for its devices; the text says why there are none.
char* flambeau_init_cuda() {
  return guarded([] { at::globalContext().lazyInitDevice(at::kCUDA); });
}

// Makes a GPU the present one of this thread.
char* flambeau_set_device(int index) {
  return guarded([&] { implementation(cuda(index)).setDevice(cuda(index)); });
}

// TensorFloat-32 in matrix products and convolutions of float32, in the whole process.
char* flambeau_allow_tf32() {
  return guarded([] {
    at::globalContext().setAllowTF32CuBLAS(true);
    at::globalContext().setAllowTF32CuDNN(true);
  });
}

// The stream that this thread's work on a GPU goes to.
char* flambeau_stream_current(int index, c10::Stream** result) {
  return guarded([&] { *result = new c10::Stream(implementation(cuda(index)).getStream(cuda(index))); });
}

// A stream of libtorch's pool, which does not wait for the default one.
char* flambeau_stream_of_pool(int index, c10::Stream** result) {
  return guarded(
      [&] { *result = new c10::Stream(implementation(cuda(index)).getStreamFromGlobalPool(cuda(index))); });
}

void flambeau_stream_free(c10::Stream* stream) noexcept {
  delete stream;
}

// Has this thread's work go to a stream; `before` is where it went until now.
char* flambeau_stream_enter(const c10::Stream* stream, c10::Stream** before) {
  return guarded([&] { *before = new c10::Stream(implementation(stream->device()).exchangeStream(*stream)); });
}

// The stream as the driver knows it; 0 is the default one.
char* flambeau_stream_handle(const c10::Stream* stream, size_t* handle) {
  return guarded([&] { *handle = reinterpret_cast<size_t>(stream->native_handle()); });
}

// Keeps a tensor's memory from being given to others before the work that the stream has now is done.
char* flambeau_stream_uses(const c10::Stream* stream, ConstTensorPtr tensor) {
  return guarded(
      [&] { implementation(stream->device()).recordDataPtrOnStream(tensor->storage().data_ptr(), *stream); });
}

// An event behind all work that the stream has now.
char* flambeau_event_after(const c10::Stream* stream, c10::Event** result) {
  return guarded([&] {
    auto event = std::make_unique<c10::Event>(stream->device_type());
    event->record(*stream);
    *result = event.release();
  });
}

void flambeau_event_free(c10::Event* event) noexcept {
  delete event;
}

// Has the work that the stream gets from now on wait for the event.
char* flambeau_event_hold(const c10::Event* event, const c10::Stream* stream) {
  return guarded([&] { event->block(*stream); });
}

// Waits for the event.
char* flambeau_event_wait(const c10::Event* event) {
  return guarded([&] { event->synchronize(); });
}

// A tensor without values in page-locked memory, which a GPU copies from and to while the host goes on.
char* flambeau_empty_pinned(const int64_t* sizes, size_t num_dims, int scalar_type, TensorPtr* result) {
  return guarded([&] {
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(scalar_type)).pinned_memory(true);
    *result = new at::Tensor(at::empty(at::IntArrayRef(sizes, num_dims), options));
  });
}

// Copies one tensor over another, the host not waiting for a device where the one in main memory is page-locked.
char* flambeau_copy(ConstTensorPtr target, ConstTensorPtr source) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    target->copy_(*source, /*non_blocking=*/true);
  });
}

// Multiplies tensors by a number.
char* flambeau_scale(const ConstTensorPtr* tensors, size_t count, double factor) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::_foreach_mul_(tensors_of(tensors, count), factor);
  });
}

// Whether all elements are finite. Waits for the device.
char* flambeau_are_finite(const ConstTensorPtr* tensors, size_t count, bool* result) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const auto largest = norm_of_all(tensors_of(tensors, count), std::numeric_limits<double>::infinity());
    *result = std::isfinite(largest.item<double>());
  });
}

// Scales tensors down so that their 2-norm together is at most `max_norm`, by the factor min(1, max_norm / (norm + 1e-6))
// of torch's clip_grad_norm_. The norm stays where they lie: nothing waits for the device.
char* flambeau_clip(const ConstTensorPtr* tensors, size_t count, double max_norm) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const auto all = tensors_of(tensors, count);
    const auto factor = norm_of_all(all, 2).add_(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
    at::_foreach_mul_(all, factor);
  });
}
}
