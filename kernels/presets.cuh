// Kernels of their own for the presets of taco/recipes on bf16 tensors: with all of the codec known, they take two thirds
// of the instructions of the general ones. V as measured on an H200: 8 vectors a lane only for 6 bits, which take more to
// pack and unpack, and not where sums need the registers (V6).
#pragma once

#include "launch.cuh"

namespace taco {

template <int V, int GROUP, int SIZE, bool SIGNED, bool ADAPTIVE, Scale SCALE>
using Preset = Shape<V, GROUP / (8 * V), SIZE, SIGNED, ADAPTIVE, int(SCALE), int(Dtype::kBf16)>;

// V6: vectors a lane for INT6. body(P{}, S{}) and true; or false, where spec is none of them.
template <int V6, class Body>
bool with_preset(const Spec& spec, Body body) {
  if (spec.dtype != Dtype::kBf16 || spec.stochastic) return false;
  const Form& form = spec.form;
  const bool plain = spec.rotation_size == 1, whole = spec.rotation_size == spec.group;
  auto is = [&](Payload payload, int group) { return form.payload == payload && spec.group == group; };
  if (form.adaptive && whole && !spec.signs && form.scale == Scale::kFp32) {
    using S = Preset<4, 128, 128, false, true, Scale::kFp32>;
    if (is(Payload::kE4M3, 128)) return body(Float8<3, 7>{}, S{}), true;
    if (is(Payload::kE5M2, 128)) return body(Float8<2, 15>{}, S{}), true;
  }
  if (!form.adaptive && whole && spec.signs && form.scale == Scale::kBf16) {
    if (is(Payload::kInt8, 128)) return body(Integer<8>{}, Preset<4, 128, 128, true, false, Scale::kBf16>{}), true;
    if (is(Payload::kInt6, 128)) return body(Integer<6>{}, Preset<V6, 128, 128, true, false, Scale::kBf16>{}), true;
    if (is(Payload::kInt4, 32)) return body(Integer<4>{}, Preset<4, 32, 32, true, false, Scale::kBf16>{}), true;
  }
  if (!form.adaptive && plain && form.scale == Scale::kE8m0) {
    if (is(Payload::kE4M3, 128)) return body(Float8<3, 7>{}, Preset<4, 128, 0, false, false, Scale::kE8m0>{}), true;
    if (is(Payload::kE4M3, 32)) return body(Float8<3, 7>{}, Preset<4, 32, 0, false, false, Scale::kE8m0>{}), true;
  }
  if (!form.adaptive && spec.rotation_size == 32 && !spec.signs && form.scale == Scale::kFp32) {
    if (is(Payload::kInt4, 128)) return body(Integer<4>{}, Preset<4, 128, 32, false, false, Scale::kFp32>{}), true;
  }
  return false;
}

}  // namespace taco
