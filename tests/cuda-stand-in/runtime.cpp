// The functions of CUDA's runtime that torch calls, for tests on machines without a GPU.
//
// Loaded before the real runtime, the library stands before it: GPUs are threads, their memory is the process's. What is
// missing here goes to the real runtime, which says that there is no GPU. Kernels cannot run: kernels.cpp has torch compute
// on the CPU instead.

#include <cstdio>
#include <cstring>

#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "machine.h"

using namespace stand_in;

namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t code) {
  if (code != cudaSuccess && code != cudaErrorNotReady) {
    last_error = code;
  }
  return code;
}

Event& event_of(cudaEvent_t event) {
  return *reinterpret_cast<Event*>(event);
}

cudaError_t make_event(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new Event(present_device()));
  return cudaSuccess;
}

cudaError_t make_stream(cudaStream_t* stream) {
  *stream = reinterpret_cast<cudaStream_t>(create_stream(present_device()));
  return cudaSuccess;
}

bool is_host_only(const void* address) {
  return !range_of(address).has_value();
}

// Copies within a stream. The host goes on at once where its side is page-locked, and where it only reads from its side, of
// which CUDA takes a copy.
cudaError_t copy_in_stream(const char* call, void* target, const void* source, size_t num_bytes, Stream& stream) {
  if (num_bytes == 0) {
    return cudaSuccess;
  }
  if (is_host_only(source)) {
    auto copy = std::make_shared<std::string>(static_cast<const char*>(source), num_bytes);
    stream.launch([=] { std::memcpy(target, copy->data(), num_bytes); });
  } else {
    stream.launch([=] { std::memmove(target, source, num_bytes); });
  }
  if (is_host_only(target)) {
    log_wait(call);
    stream.drain();
  }
  return cudaSuccess;
}

cudaError_t refuse_kernel() {
  static const char text[] = "the stand-in for CUDA was asked to run a kernel, by\n";
  void* frames[40];
  const int count = backtrace(frames, 40);
  if (write(STDERR_FILENO, text, sizeof text - 1) > 0) {
    backtrace_symbols_fd(frames, count, STDERR_FILENO);
  }
  return result(cudaErrorNotSupported);
}

// Has torch, which has just asked for devices for the first time, compute on the CPU.
void load_kernels() {
  static const bool loaded = [] {
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(&load_kernels), &info) == 0) {
      return false;
    }
    std::string path = info.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + "libcuda_kernels.so";
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
      std::fprintf(stderr, "the stand-in for CUDA: %s\n", dlerror());
      std::abort();
    }
    return true;
  }();
  static_cast<void>(loaded);
}

int not_there() {
  return 801;  // CUDA_ERROR_NOT_SUPPORTED
}

}  // namespace

extern "C" {

// For kernels.cpp: what a kernel in this stream would wait for.
void cuda_stand_in_drain(void* stream, int device) {
  stream_of(stream, device).drain();
}

// Devices.

cudaError_t cudaGetDeviceCount(int* count) {
  *count = num_devices();
  return *count > 0 ? cudaSuccess : result(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = present_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= num_devices()) {
    return result(cudaErrorInvalidDevice);
  }
  current_device() = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= num_devices()) {
    return result(cudaErrorInvalidDevice);
  }
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "the host, as a GPU");
  write_uuid(device, properties->uuid.bytes);
  properties->totalGlobalMem = memory_of_device();
  properties->major = 9;
  properties->warpSize = 32;
  properties->multiProcessorCount = 1;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = 49152;
  properties->pciBusID = number_in_machine(device) + 1;
  load_kernels();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  log_wait("cudaDeviceSynchronize");
  drain_device(present_device());
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned int, unsigned long long, cudaDriverEntryPointQueryResult* status) {
  *function = dlsym(RTLD_DEFAULT, symbol);
  if (*function == nullptr) {
    *function = reinterpret_cast<void*>(&not_there);
  }
  if (status != nullptr) {
    *status = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

// Errors.

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  return last_error;
}

// Memory.

cudaError_t cudaMalloc(void** start, size_t num_bytes) {
  *start = allocate(present_device(), num_bytes);
  return *start != nullptr ? cudaSuccess : result(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* start) {
  if (start == nullptr) {
    return cudaSuccess;
  }
  log_wait("cudaFree");
  if (const auto range = range_of(start)) {
    drain_device(range->device);
  }
  return release(start) ? cudaSuccess : result(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = memory_of_device();
  *free = *total - memory_in_use(present_device());
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** start, size_t num_bytes, unsigned int) {
  *start = allocate_pinned(num_bytes);
  return *start != nullptr ? cudaSuccess : result(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* start) {
  log_wait("cudaFreeHost");
  for (int device = 0; device < num_devices(); ++device) {
    drain_device(device);
  }
  return start == nullptr || release(start) ? cudaSuccess : result(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void* start, size_t num_bytes, unsigned int) {
  pin(start, num_bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* start) {
  unpin(start);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->device = present_device();
  attributes->hostPointer = const_cast<void*>(address);
  if (const auto range = range_of(address)) {
    attributes->type = range->device == kPinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    attributes->devicePointer = const_cast<void*>(address);
    if (range->device != kPinned) {
      attributes->device = range->device;
      attributes->hostPointer = nullptr;
    }
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void* target, const void* source, size_t num_bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy_in_stream("cudaMemcpyAsync to memory that is not page-locked", target, source, num_bytes,
                        stream_of(stream));
}

cudaError_t cudaMemcpyPeerAsync(
    void* target, int, const void* source, int, size_t num_bytes, cudaStream_t stream) {
  return copy_in_stream("cudaMemcpyPeerAsync", target, source, num_bytes, stream_of(stream));
}

cudaError_t cudaMemcpy(void* target, const void* source, size_t num_bytes, cudaMemcpyKind) {
  auto& stream = stream_of(nullptr);
  log_wait("cudaMemcpy");
  stream.launch([=] { std::memmove(target, source, num_bytes); });
  stream.drain();
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* start, int value, size_t num_bytes, cudaStream_t stream) {
  stream_of(stream).launch([=] { std::memset(start, value, num_bytes); });
  return cudaSuccess;
}

// Streams.

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return make_stream(stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  return make_stream(stream);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  return make_stream(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  destroy_stream(reinterpret_cast<Stream*>(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return stream_of(stream).is_idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  log_wait("cudaStreamSynchronize");
  stream_of(stream).drain();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  event_of(event).hold(stream_of(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  stream_of(stream).launch([=] { function(argument); });
  return cudaSuccess;
}

// Nothing is ever captured.

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) {
    *id = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

// Events.

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return make_event(event);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  return make_event(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto& in = stream_of(stream);
  if (event_of(event).device() != in.device()) {
    return result(cudaErrorInvalidResourceHandle);
  }
  event_of(event).record(in);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event_of(event).is_done() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  log_wait("cudaEventSynchronize");
  event_of(event).wait();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const auto time = event_of(end).time() - event_of(start).time();
  *milliseconds = std::chrono::duration<float, std::milli>(time).count();
  return cudaSuccess;
}

// Kernels.

cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel();
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  return refuse_kernel();
}

cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel();
}
}
