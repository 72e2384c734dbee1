"""Codecs: a tensor becomes one contiguous uint8 Packet and comes back.

int8 = coder(preset("int8"))
packet = int8.encode(x)
y = int8.decode(packet, x.numel(), x.dtype).view_as(x)
"""

from taco.codec.base import Coder
from taco.codec.factory import coder, register
from taco.codec.fit import Fit, fit

__all__ = ["Coder", "Fit", "coder", "fit", "register"]
