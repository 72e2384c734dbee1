// torch.ops.taco.collective: a fused collective of this rank on torch's current stream (taco/comm/fused.py).
#include <torch/csrc/stable/library.h>

#include <optional>
#include <vector>

#include "codec.h"
#include "collective_ops.h"
#include "stream.h"

namespace {

using taco::Collective;
using taco::Mesh;
using taco::Message;
using taco::Spec;
using torch::stable::Tensor;

// The numbers of a workspace, as taco.comm.workspace makes them.
struct Numbers {
  Mesh mesh;
  int sms;
};

Numbers numbers_of(const std::vector<int64_t>& n) {
  STD_TORCH_CHECK(n.size() == 11, "got ", n.size(), " numbers of a workspace; need 11; because they describe it");
  STD_TORCH_CHECK(n[0] && n[1] && n[2] && n[4] > 1 && n[3] >= 0 && n[3] < n[4] && n[9] > 0 && n[9] * taco::kMaxPipes <= n[5] &&
                      n[6] > 0 && n[6] % 128 == 0,
                  "got other numbers of a workspace; need those of a taco.comm.workspace.Workspace; because kernels write there");
  Mesh mesh{};
  mesh.workspaces = reinterpret_cast<uint8_t* const*>(n[0]);
  mesh.state = reinterpret_cast<uint32_t*>(n[1]);
  mesh.report = reinterpret_cast<int64_t*>(n[2]);
  mesh.rank = int(n[3]), mesh.world = int(n[4]), mesh.pipelines = int(n[5]), mesh.slot = int(n[6]), mesh.pause = int(n[7]);
  mesh.timeout = n[8];
  STD_TORCH_CHECK(n[10] >= mesh.nbytes(), "got a workspace of ", n[10], " bytes; need ", mesh.nbytes(), "; because kernels write there");
  return {mesh, int(n[9])};
}

// The message and the tensor of its result.
Tensor prepare(const Tensor& x, Collective collective, const std::optional<taco::Codec>& codec, const Mesh& mesh, Message& message) {
  const int64_t numel = x.numel(), world = mesh.world;
  const auto dtype = x.scalar_type();
  message.total = numel;
  message.part = numel;
  Tensor out;
  if (collective == Collective::kReduceScatter) {
    STD_TORCH_CHECK(numel % world == 0, "got ", numel, " elements to scatter; need a multiple of ", world, "; because ranks get equal parts");
    message.part = numel / world;
    out = taco::empty_beside(x, false, 1, message.part, dtype);
  } else if (collective == Collective::kAllGather) {
    message.total = numel * world;
    out = taco::empty_beside(x, true, world, numel, dtype);
  } else {
    if (collective == Collective::kTwoShot) {
      const int64_t group = codec ? codec->group : taco::kPlainGroup, each = (numel + world - 1) / world;
      message.part = (each + group - 1) / group * group;
    }
    out = taco::empty_beside(x, false, 1, numel, dtype);
  }
  if (codec) {
    message.spec = taco::spec_of(message.part, *codec);
  } else {
    message.spec.group = taco::kPlainGroup;
    message.spec.rotation_size = 1;
  }
  message.spec.numel = message.part;
  message.spec.dtype = taco::dtype_of(dtype);
  message.x = static_cast<const uint8_t*>(x.const_data_ptr());
  message.out = static_cast<uint8_t*>(out.mutable_data_ptr());
  // of an all-gather, only the result has parts
  const bool scatters = collective == Collective::kReduceScatter || collective == Collective::kTwoShot;
  const bool gathers = collective == Collective::kAllGather || collective == Collective::kTwoShot;
  message.in_aligned = taco::aligned(message.x, scatters ? 2 : 1, message.part, message.spec.dtype);
  message.out_aligned = taco::aligned(message.out, gathers ? 2 : 1, message.part, message.spec.dtype);
  return out;
}

// token: changed as far as callers know, so that calls keep their order.
Tensor collective(const Tensor& x, Tensor token, std::vector<int64_t> numbers, int64_t codec_number, int64_t kind,
                  std::vector<int64_t> seeds) {
  STD_TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "got x that is not a contiguous CUDA tensor; need one; because peers read it in flat order");
  STD_TORCH_CHECK(kind >= 0 && kind <= int(Collective::kAllGather), "got collective ", kind, "; need 0 to 3; because those have kernels");
  const Numbers of = numbers_of(numbers);
  const Collective which = Collective(kind);
  const bool plain = codec_number == 0;
  std::optional<taco::Codec> codec;
  if (!plain) codec.emplace(codec_number);
  Message message{};
  Tensor out = prepare(x, which, codec, of.mesh, message);
  STD_TORCH_CHECK(token.device() == x.device() && of.mesh.slot >= taco::collective_slot(message.spec, plain), "got slots of ",
                  of.mesh.slot, " bytes or a token on another device; need slots of ", taco::collective_slot(message.spec, plain),
                  " bytes and a token on the tensor's; because packets have that size");
  if (message.spec.stochastic) {
    const bool scatters = which == Collective::kReduceScatter || which == Collective::kTwoShot;
    const size_t wanted = (scatters ? of.mesh.world : 1) + (which == Collective::kTwoShot ? 1 : 0);
    STD_TORCH_CHECK(seeds.size() == wanted && wanted <= taco::kMaxSeeds, "got ", seeds.size(), " seeds; need ", wanted, ", at most ",
                    taco::kMaxSeeds, "; because every packet of stochastic rounding has one");
    for (size_t i = 0; i < wanted; ++i) message.seeds.of[i] = uint32_t(seeds[i]);
  }
  if (message.part == 0) return out;
  taco::on_device(x, [&](taco::Target target) {
    const auto stream = static_cast<cudaStream_t>(target.stream);
    if (plain) return taco::collective_plain(which, of.mesh, message, of.sms, stream);
    bool found = false;
    const cudaError_t status = taco::collective_preset(which, of.mesh, message, of.sms, stream, &found);
    if (found) return status;
    return message.spec.dtype == taco::Dtype::kFp32 ? taco::collective_32bit(which, of.mesh, message, of.sms, stream)
                                                    : taco::collective_16bit(which, of.mesh, message, of.sms, stream);
  });
  return out;
}

// Bytes of the packet of a chunk of this dtype. codec_number: 0 for none.
int64_t collective_packet(torch::headeronly::ScalarType dtype, int64_t codec_number) {
  Spec spec{};
  if (codec_number != 0) spec = taco::spec_of(0, taco::Codec(codec_number));
  spec.dtype = taco::dtype_of(dtype);
  return taco::collective_packet(spec, codec_number == 0);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(taco, m) {
  m.def("collective(Tensor x, Tensor(a!) token, int[] numbers, int codec, int kind, int[] seeds) -> Tensor");
  m.def("collective_packet(ScalarType dtype, int codec) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(taco, CUDA, m) { m.impl("collective", TORCH_BOX(&collective)); }

STABLE_TORCH_LIBRARY_IMPL(taco, CompositeExplicitAutograd, m) { m.impl("collective_packet", TORCH_BOX(&collective_packet)); }
