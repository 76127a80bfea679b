#include "saved.h"

#include "border.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <memory>
#include <vector>

using namespace flambeau;

char* flambeau_saved_tensors(const char* data, size_t size, void* context, flambeau_take_tensor take) {
  return guarded([&] {
    const auto value = torch::jit::pickle_load(std::vector<char>(data, data + size));
    TORCH_CHECK(value.isGenericDict(), "it holds no dict but ", value.tagKind());
    for (const auto& entry : value.toGenericDict()) {
      TORCH_CHECK(entry.key().isString() && entry.value().isTensor(), "it holds something else than tensors");
      const auto& name = entry.key().toStringRef();
      auto tensor = std::make_unique<at::Tensor>(entry.value().toTensor());
      take(context, name.data(), name.size(), tensor.release());
    }
  });
}
