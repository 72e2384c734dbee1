// What every binding checks: messages as rows, and packets.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "ops.h"

namespace taco {

// Offsets of sections one after another, each 16-byte aligned, as wire.layout gives them.
class Sections {
 public:
  int64_t add(int64_t bytes) {
    int64_t offset = total_;
    total_ += (bytes + 15) / 16 * 16;
    return offset;
  }
  int64_t total() const { return total_; }

 private:
  int64_t total_ = 0;
};

inline void check_numel(int64_t numel) {
  STD_TORCH_CHECK(numel >= 0, "got numel ", numel, "; need at least 0; because it counts elements");
}

inline void check_rows(const torch::stable::Tensor& rows) {
  STD_TORCH_CHECK(rows.dim() == 2 && rows.is_contiguous(), "got rows of ", rows.dim(),
                  " dimensions; need a contiguous [P, numel]; because each row is one message in flat order");
}

// packets: uint8 [P, N, nbytes], where rows and packets may lie apart.
inline PacketRows packets_of(const torch::stable::Tensor& packets, int64_t nbytes) {
  bool shaped = packets.scalar_type() == torch::headeronly::ScalarType::Byte && packets.dim() == 3 && packets.size(2) == nbytes;
  STD_TORCH_CHECK(shaped && packets.size(1) > 0, "got packets of another dtype or size; need uint8 [P, N >= 1, ",
                  nbytes, "]; because that is the packet of a message of this size");
  auto apart = [&](int dim) { return packets.size(dim) == 1 || packets.stride(dim) % 16 == 0; };
  bool aligned = reinterpret_cast<uintptr_t>(packets.const_data_ptr()) % 16 == 0 && apart(0) && apart(1);
  STD_TORCH_CHECK(nbytes == 0 || (aligned && packets.stride(2) == 1),
                  "got packets that are not 16-byte aligned; need contiguous ones at multiples of 16 bytes; because "
                  "the kernels load words");
  return {static_cast<const uint8_t*>(packets.const_data_ptr()), packets.size(0), packets.stride(0), packets.size(1),
          packets.stride(1)};
}

}  // namespace taco
