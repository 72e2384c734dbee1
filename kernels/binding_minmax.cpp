// torch.ops.taco.{minmax, tahquant}_*: checks, allocation and dispatch of the min/max codecs on torch's stable ABI.
// Fake implementations are in taco/codec/minmax_cuda.py, the packet layout in taco/codec/wire.py.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cmath>

#include "minmax_ops.h"
#include "packets.h"
#include "stream.h"

namespace {

using taco::check_numel;
using taco::check_rows;
using taco::dtype_of;
using taco::Metadata;
using taco::MinMax;
using taco::on_device;
using taco::PacketRows;
using taco::packets_of;
using taco::Sections;
using taco::TahQuant;
using taco::Target;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

MinMax minmax_of(int64_t numel, int64_t bits, int64_t group, int64_t metadata) {
  check_numel(numel);
  STD_TORCH_CHECK(bits == 4 || bits == 6 || bits == 8, "got bits ", bits,
                  "; need 4, 6 or 8; because these have kernels");
  STD_TORCH_CHECK(group >= 16 && group <= 512 && (group & (group - 1)) == 0, "got group ", group,
                  "; need a power of two from 16 to 512; because a group lies in the lanes of one warp");
  STD_TORCH_CHECK(metadata >= 0 && metadata <= 2, "got metadata ", metadata,
                  "; need 0 (fp16), 1 (bf16) or 2 (fp32); because these have a wire format");
  MinMax spec{};
  spec.numel = numel;
  spec.groups = (numel + group - 1) / group;
  spec.bits = int(bits);
  spec.group = int(group);
  spec.metadata = Metadata(metadata);
  int64_t codes = spec.groups * group, stored = spec.groups * bytes_of(spec.metadata);
  Sections sections;
  spec.low = sections.add(bits == 8 ? codes : codes / 2);
  spec.high = sections.add(bits == 6 ? codes / 4 : 0);
  spec.lo = sections.add(stored);
  spec.step = sections.add(stored);
  spec.nbytes = sections.total();
  return spec;
}

Tensor minmax_encode(const Tensor& rows, int64_t bits, int64_t group, int64_t metadata) {
  check_rows(rows);
  MinMax spec = minmax_of(rows.size(1), bits, group, metadata);
  spec.dtype = dtype_of(rows.scalar_type());
  Tensor packets = taco::empty_beside(rows, true, rows.size(0), spec.nbytes, ScalarType::Byte);
  on_device(rows, [&](Target target) {
    return taco::minmax_encode(spec, target, rows.const_data_ptr(), rows.size(0),
                               static_cast<uint8_t*>(packets.mutable_data_ptr()));
  });
  return packets;
}

Tensor minmax_decode_sum(const Tensor& packets, int64_t numel, ScalarType dtype, int64_t bits, int64_t group,
                         int64_t metadata) {
  MinMax spec = minmax_of(numel, bits, group, metadata);
  spec.dtype = dtype_of(dtype);
  PacketRows from = packets_of(packets, spec.nbytes);
  Tensor out = taco::empty_beside(packets, true, from.rows, numel, dtype);
  on_device(packets, [&](Target target) {
    return taco::minmax_decode_sum(spec, target, from, out.mutable_data_ptr());
  });
  return out;
}

Tensor minmax_decode_sum_encode(const Tensor& packets, int64_t numel, int64_t bits, int64_t group, int64_t metadata) {
  MinMax spec = minmax_of(numel, bits, group, metadata);
  PacketRows from = packets_of(packets, spec.nbytes);
  Tensor out = taco::empty_beside(packets, true, from.rows, spec.nbytes, ScalarType::Byte);
  on_device(packets, [&](Target target) {
    return taco::minmax_decode_sum_encode(spec, target, from, static_cast<uint8_t*>(out.mutable_data_ptr()));
  });
  return out;
}

TahQuant tahquant_of(int64_t numel, int64_t tile, int64_t low, double pivot_ratio) {
  check_numel(numel);
  STD_TORCH_CHECK(tile == 32 || tile == 64, "got tile ", tile, "; need 32 or 64; because an index has six bits");
  TahQuant spec{};
  spec.numel = numel;
  spec.tiles = (numel + tile - 1) / tile;
  STD_TORCH_CHECK(low >= 0 && low <= spec.tiles && spec.tiles < (int64_t(1) << 31), "got ", low, " INT3 tiles of ",
                  spec.tiles, "; need 0 to all of fewer than 2^31; because each tile is INT3 or INT4");
  spec.narrow = low;
  spec.tile = int(tile);
  spec.pivot_ratio = float(pivot_ratio);
  spec.inv_sqrt_tile = float(1.0 / std::sqrt(double(tile)));
  Sections sections;
  spec.int3_low = sections.add(low * tile / 4);
  spec.int3_high = sections.add(low * tile / 8);
  spec.int4 = sections.add((spec.tiles - low) * tile / 2);
  spec.head = sections.add(spec.tiles);
  spec.lo = sections.add(2 * spec.tiles);
  spec.step = sections.add(2 * spec.tiles);
  spec.nbytes = sections.total();
  return spec;
}

// The launch works in a scratch tensor beside the packets: a histogram a message.
Tensor tahquant_rows(TahQuant spec, const Tensor& rows) {
  spec.dtype = dtype_of(rows.scalar_type());
  Tensor packets = taco::empty_beside(rows, true, rows.size(0), spec.nbytes, ScalarType::Byte);
  on_device(rows, [&](Target target) {
    int64_t bytes = taco::tahquant_scratch_bytes(spec, target, rows.size(0));
    Tensor scratch = torch::stable::new_empty(rows, {bytes}, ScalarType::Byte);
    return taco::tahquant_encode(spec, target, rows.const_data_ptr(), rows.size(0),
                                 static_cast<uint8_t*>(packets.mutable_data_ptr()),
                                 static_cast<uint8_t*>(scratch.mutable_data_ptr()));
  });
  return packets;
}

Tensor tahquant_sums(TahQuant spec, const Tensor& packets, ScalarType dtype) {
  spec.dtype = dtype_of(dtype);
  PacketRows from = packets_of(packets, spec.nbytes);
  STD_TORCH_CHECK(from.count <= taco::kTahQuantMaxPackets, "got sums of ", from.count, " packets; need at most ",
                  taco::kTahQuantMaxPackets, "; because a block counts the tiles of each in shared memory");
  Tensor out = taco::empty_beside(packets, true, from.rows, spec.numel, dtype);
  on_device(packets, [&](Target target) {
    return taco::tahquant_decode_sum(spec, target, from, out.mutable_data_ptr());
  });
  return out;
}

Tensor tahquant_encode(const Tensor& rows, int64_t tile, int64_t low, double pivot_ratio) {
  check_rows(rows);
  return tahquant_rows(tahquant_of(rows.size(1), tile, low, pivot_ratio), rows);
}

Tensor tahquant_decode_sum(const Tensor& packets, int64_t numel, ScalarType dtype, int64_t tile, int64_t low) {
  return tahquant_sums(tahquant_of(numel, tile, low, 1.0), packets, dtype);
}

// Two launches with the fp32 sums between them: the encoder reads its input twice, and would decode N packets twice.
Tensor tahquant_decode_sum_encode(const Tensor& packets, int64_t numel, int64_t tile, int64_t low, double pivot_ratio) {
  TahQuant spec = tahquant_of(numel, tile, low, pivot_ratio);
  return tahquant_rows(spec, tahquant_sums(spec, packets, ScalarType::Float));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(taco, m) {
  m.def("minmax_encode(Tensor rows, int bits, int group, int metadata) -> Tensor");
  m.def("minmax_decode_sum(Tensor packets, int numel, ScalarType dtype, int bits, int group, int metadata) -> Tensor");
  m.def("minmax_decode_sum_encode(Tensor packets, int numel, int bits, int group, int metadata) -> Tensor");
  m.def("tahquant_encode(Tensor rows, int tile, int low, float pivot_ratio) -> Tensor");
  m.def("tahquant_decode_sum(Tensor packets, int numel, ScalarType dtype, int tile, int low) -> Tensor");
  m.def("tahquant_decode_sum_encode(Tensor packets, int numel, int tile, int low, float pivot_ratio) -> Tensor");
}

#define TACO_MINMAX_IMPL(m)                                                 \
  m.impl("minmax_encode", TORCH_BOX(&minmax_encode));                       \
  m.impl("minmax_decode_sum", TORCH_BOX(&minmax_decode_sum));               \
  m.impl("minmax_decode_sum_encode", TORCH_BOX(&minmax_decode_sum_encode)); \
  m.impl("tahquant_encode", TORCH_BOX(&tahquant_encode));                   \
  m.impl("tahquant_decode_sum", TORCH_BOX(&tahquant_decode_sum));           \
  m.impl("tahquant_decode_sum_encode", TORCH_BOX(&tahquant_decode_sum_encode));

STABLE_TORCH_LIBRARY_IMPL(taco, CPU, m) { TACO_MINMAX_IMPL(m) }
STABLE_TORCH_LIBRARY_IMPL(taco, CUDA, m) { TACO_MINMAX_IMPL(m) }
