// The functions of CUDA's driver that Flambeau and torch call. Unlike the runtime, the driver wants a context to be current.

#include <cstring>

#include <cuda.h>

#include "machine.h"

using namespace stand_in;

namespace {

// The names as they are without the header's macros, which stand for later versions.
#undef cuDeviceGetUuid
#undef cuDevicePrimaryCtxRelease
#undef cuStreamDestroy
#undef cuEventDestroy

Event& event_of(CUevent event) {
  return *reinterpret_cast<Event*>(event);
}

bool has_context() {
  return current_device() != kNone;
}

// A context is the number of its GPU, from 1.
CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
}

bool is_device(CUdevice device) {
  return device >= 0 && device < num_devices();
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int) {
  return num_devices() > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = num_devices();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return is_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  if (!is_device(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  write_uuid(device, uuid->bytes);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (!is_device(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  std::strncpy(name, "the host, as a GPU", static_cast<size_t>(length));
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  return is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned int* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  current_device() = static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
  return CUDA_SUCCESS;
}

// Nothing is ever captured.

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) {
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  if (!has_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *stream = reinterpret_cast<CUstream>(create_stream(current_device()));
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  destroy_stream(reinterpret_cast<Stream*>(stream));
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  if (!has_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  event_of(event).hold(stream_of(stream));
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned int) {
  if (!has_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *event = reinterpret_cast<CUevent>(new Event(current_device()));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  delete &event_of(event);
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  if (!has_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  auto& in = stream_of(stream);
  if (event_of(event).device() != in.device()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  event_of(event).record(in);
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  return event_of(event).is_done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuMemsetD8Async(CUdeviceptr start, unsigned char value, size_t num_bytes, CUstream stream) {
  if (!has_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  stream_of(stream).launch([=] { std::memset(reinterpret_cast<void*>(start), value, num_bytes); });
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "an error of the stand-in for CUDA";
  return CUDA_SUCCESS;
}
}
