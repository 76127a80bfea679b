// The tensors of a dict that torch.save wrote, in the archives of older versions of torch.export.

#pragma once

#include <cstddef>

namespace at {
class Tensor;
}

extern "C" {

// Takes a tensor, whose handle is its own from then on.
typedef void (*flambeau_take_tensor)(void* context, const char* name, size_t length, at::Tensor* tensor);

// Gives each tensor of the dict with its name. libtorch's own unpickler reads it, which makes tensors and no objects of
// Python's. Returns null, else a message that the caller frees with `flambeau_free_text`.
char* flambeau_saved_tensors(const char* data, size_t size, void* context, flambeau_take_tensor take);
}
