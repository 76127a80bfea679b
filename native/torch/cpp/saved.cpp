#include "saved.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstring>
#include <memory>
#include <vector>

extern "C" __attribute__((visibility("default"))) char* flambeau_saved_tensors(
    const char* data, size_t size, void* context, flambeau_take_tensor take) {
  try {
    const auto value = torch::jit::pickle_load(std::vector<char>(data, data + size));
    TORCH_CHECK(value.isGenericDict(), "it holds no dict but ", value.tagKind());
    for (const auto& entry : value.toGenericDict()) {
      TORCH_CHECK(entry.key().isString() && entry.value().isTensor(), "it holds something else than tensors");
      const auto& name = entry.key().toStringRef();
      auto tensor = std::make_unique<at::Tensor>(entry.value().toTensor());
      take(context, name.data(), name.size(), tensor.release());
    }
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("an exception that is none of the standard library's");
  }
}
