"""Compressed collectives and messages over any process group, and what they cost in bytes.

comm = Communicator(group, preset("int8"), role="tp_forward", meter=meter)
y = comm.all_reduce(x)                      # bit-identical on every rank
meter.totals()                              # {"tp_forward": {"wire": bytes, "raw": bytes, "messages": 1}}
"""

from taco.comm.communicator import Communicator
from taco.comm.crossover import Crossover
from taco.comm.crossover_measure import measure as measure_crossover
from taco.comm.errors import CommError
from taco.comm.meter import Meter, wire_bytes, wire_phases
from taco.comm.pending import Pending
from taco.comm.virtual import VirtualCommunicator

__all__ = [
    "CommError",
    "Communicator",
    "Crossover",
    "Meter",
    "Pending",
    "VirtualCommunicator",
    "measure_crossover",
    "wire_bytes",
    "wire_phases",
]
