"""What a person sees while a run trains: a bar on a terminal, a line now and then in a file."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from tqdm import tqdm

EVERY_S = 10.0


class Progress:
    """Progress of `total` steps, from `start`. `quiet` (every rank but the first) shows nothing."""

    def __init__(self, name: str, total: int, start: int, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._name, self._total, self._quiet = name, total, quiet
        self._last = time.monotonic()
        is_terminal = not quiet and self._stream.isatty()
        self._bar = tqdm(total=total, initial=start, desc=name, file=self._stream) if is_terminal else None

    def step(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Show that `step` is done."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}, {tokens_per_s:,.0f} tokens/s", refresh=False)
            self._bar.update(step - self._bar.n)
            return
        if time.monotonic() - self._last >= EVERY_S:
            self._last = time.monotonic()
            self.say(f"step {step}/{self._total}, loss {loss:.3f}, {tokens_per_s:,.0f} tokens/s")

    def say(self, text: str) -> None:
        """One line, with the run's name before it."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.write(f"{self._name}: {text}", file=self._stream)
        else:
            print(f"{self._name}: {text}", file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
