// What the compression of gradients asks of a device. Nothing here waits for it.

#include "border.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/ones_like.h>

using namespace flambeau;

extern "C" {

// Copies each source over its target, perhaps in another type.
char* flambeau_copy_all(const ConstTensorPtr* targets, const ConstTensorPtr* sources, size_t count) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::_foreach_copy_(tensors_of(targets, count), tensors_of(sources, count));
  });
}

// Adds each source to its target.
char* flambeau_add_all(const ConstTensorPtr* targets, const ConstTensorPtr* sources, size_t count) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::_foreach_add_(tensors_of(targets, count), tensors_of(sources, count));
  });
}

// Makes the rows of each matrix orthonormal, in their order. As Gram and Schmidt's: no vector turns around.
char* flambeau_orthonormalize(ConstTensorPtr matrices) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const auto [basis, upper] = at::linalg_qr(matrices->mT().to(at::kDouble));
    const auto diagonal = upper.diagonal(0, -2, -1);
    const auto signs = at::ones_like(diagonal).copysign_(diagonal);
    matrices->copy_(basis.mul(signs.unsqueeze(-2)).mT());
  });
}

// Makes each product that of a matrix of `left` and one of `right`.
char* flambeau_multiply(ConstTensorPtr left, ConstTensorPtr right, ConstTensorPtr products) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::Tensor result = *products;
    at::bmm_out(result, *left, *right);
  });
}

// Makes each gradient the product of a transposed matrix of `left` and one of `right`, and takes it off `unsent`.
char* flambeau_expand(ConstTensorPtr left, ConstTensorPtr right, ConstTensorPtr unsent,
                      const ConstTensorPtr* gradients, size_t count) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const auto products = at::bmm(left->mT(), *right);
    unsent->sub_(products);
    at::_foreach_copy_(tensors_of(gradients, count), products.unbind());
  });
}

// Moves the elements of largest magnitude to entries, as many as there are indices; `start` is the index of the first element.
char* flambeau_take_largest(ConstTensorPtr unsent, int64_t start, ConstTensorPtr indices, ConstTensorPtr values) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const auto magnitudes = unsent->view(at::kInt).bitwise_and(0x7fffffff);
    // No two keys are equal: of equal magnitudes that of the first element is the largest.
    const auto keys = at::arange(0, -unsent->numel(), -1, magnitudes.options().dtype(at::kLong));
    keys.add_(magnitudes, int64_t{1} << 32);
    const auto chosen = std::get<1>(keys.topk(indices->numel(), 0, /*largest=*/true, /*sorted=*/false));
    values->copy_(unsent->index_select(0, chosen));
    indices->copy_(chosen.add(start));
    unsent->index_fill_(0, chosen, 0.0);
  });
}

// Makes the gradients the mean of the ranks' entries. Indices have no sign.
char* flambeau_average(const ConstTensorPtr* indices, const ConstTensorPtr* values, size_t num_ranks,
                       ConstTensorPtr gradients) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    gradients->zero_();
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      const auto wide = indices[rank]->to(at::kLong).bitwise_and(0xffffffff);
      // No rank has an index twice, so the order of additions is that of the ranks.
      gradients->index_add_(0, wide, *values[rank]);
    }
    gradients->div_(static_cast<double>(num_ranks));
  });
}
}
